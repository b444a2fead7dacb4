//! Secrets in files, as containers get them.

use super::ended;
use crate::world::{World, point};

#[tokio::test(flavor = "multi_thread")]
async fn urls_and_passwords_are_read_from_files() {
    const SECRET: &str = "from4file";
    let world = World::private("secret_files", 2).await;
    world.sql(&format!("CREATE ROLE filed SUPERUSER LOGIN PASSWORD '{SECRET}'")).await;
    world.let_in("host all filed 127.0.0.1/32 scram-sha-256").await;
    world.ask::<redis::Value>(&format!("ACL SETUSER filed on >{SECRET} ~* +@all")).await;

    let folder = tempfile::TempDir::with_prefix("hexlane-secrets-").unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let password = write("password", &format!("{SECRET}\n"));
    let redis_url = world.redis_url.replace("redis://", "redis://filed@");
    let database_url = world.database_url.replace("postgres@", "filed@");
    let with_password = |url: &str| url.replace("filed@", &format!("filed:{SECRET}@"));
    world.add(0, &point("A", 1, 4.3, 52.1)).await;

    let worker = || {
        let mut command = world.command(&["worker", "--once", "--admin-addr", "127.0.0.1:0"]);
        command.env_remove("HEXLANE_REDIS_URL").env_remove("HEXLANE_DATABASE_URL").env("RUST_LOG", "trace");
        command
    };
    let mut by_urls = worker();
    by_urls.env("HEXLANE_REDIS_URL_FILE", write("redis", &with_password(&redis_url)));
    by_urls.env("HEXLANE_DATABASE_URL_FILE", write("database", &format!("{}\n", with_password(&database_url))));
    let mut by_passwords = worker();
    by_passwords.env("HEXLANE_REDIS_URL", &redis_url).env("HEXLANE_REDIS_PASSWORD_FILE", &password);
    by_passwords.env("HEXLANE_DATABASE_URL", &database_url).env("HEXLANE_DATABASE_PASSWORD_FILE", &password);
    for command in [by_urls, by_passwords] {
        let (code, said) = ended(command).await;
        assert_eq!(code, 0, "{said}");
        assert!(!said.contains(SECRET), "{said}");
    }

    // Nobody sees them in the list of processes, in what is measured, or in the last words of a lane.
    let running = world.worker().set("REDIS_URL", &redis_url).set("REDIS_PASSWORD_FILE", &password);
    let running = running.set("DATABASE_URL", &database_url).set("DATABASE_PASSWORD_FILE", &password).ready().await;
    let arguments = std::fs::read(format!("/proc/{}/cmdline", running.id())).unwrap();
    let environment = std::fs::read(format!("/proc/{}/environ", running.id())).unwrap();
    let metrics = running.get("/metrics").await.unwrap().1;
    world.add(0, &point("hexlane-panic-test", 1, 4.3, 52.1)).await;
    let mut running = running;
    assert!(!running.wait().await.success());
    assert!(running.log().contains("panicked"), "{}", running.log());
    for text in [
        String::from_utf8_lossy(&arguments).into(),
        String::from_utf8_lossy(&environment).into(),
        metrics,
        running.log(),
    ] {
        assert!(!text.contains(SECRET), "{text}");
    }

    // Two answers to one question, or none.
    let mut both = worker();
    both.env("HEXLANE_REDIS_URL", &redis_url).env("HEXLANE_REDIS_URL_FILE", write("redis", &redis_url));
    both.env("HEXLANE_DATABASE_URL", &database_url);
    let mut absent = worker();
    absent.env("HEXLANE_DATABASE_URL_FILE", "/nowhere/secret");
    let mut empty = worker();
    empty.env("HEXLANE_DATABASE_URL_FILE", write("empty", "\n"));
    for (command, sentence) in
        [(both, "cannot be used with"), (absent, "/nowhere/secret"), (empty, "is empty"), (worker(), "--database-url")]
    {
        let (code, said) = ended(command).await;
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(sentence) && !said.contains(SECRET), "{sentence}: {said}");
    }
    let mut twice = worker();
    twice.env("HEXLANE_REDIS_URL", with_password(&redis_url)).env("HEXLANE_REDIS_PASSWORD_FILE", &password);
    twice.env("HEXLANE_DATABASE_URL", &database_url);
    let (code, said) = ended(twice).await;
    assert!(code == 1 && said.contains("there are two passwords") && !said.contains(SECRET), "{said}");
}
