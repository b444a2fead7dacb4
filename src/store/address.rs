//! The connection string: what libpq knows about TLS and the driver does not is taken out of it here.
//!
//! See <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS>.

use std::path::PathBuf;
use std::str::FromStr;

use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use super::tls::{Checks, Tls};

const FORM: &str = "write --database-url as postgres://user:password@host:port/database";

/// Where the servers are, and how the connection to them is encrypted.
#[derive(Debug)]
pub(super) struct Address {
    pub(super) config: Config,
    pub(super) tls: Tls,
}

/// The words of libpq.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    Disable,
    #[default]
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Address {
    /// Reads a URL or a string of keywords.
    ///
    /// # Errors
    /// A sentence that does not quote it, because it may hold a password.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (rest, taken) = match text.starts_with("postgres://") || text.starts_with("postgresql://") {
            true => from_url(text),
            false => from_keywords(text).ok_or(FORM)?,
        };
        let mut config = Config::from_str(&rest).map_err(|_| FORM)?;
        if config.get_hosts().is_empty() {
            return Err(FORM.into());
        }
        let (mut mode, mut tls) = (None, Tls::default());
        for (name, value) in taken {
            match name.as_str() {
                "sslmode" => mode = Some(Mode::parse(&value)?),
                "sslrootcert" => tls.root = Some(PathBuf::from(value)),
                "sslcert" => tls.certificate = Some(PathBuf::from(value)),
                _ => tls.key = Some(PathBuf::from(value)),
            }
        }
        let of_system = tls.root.as_ref().is_some_and(|root| root.as_os_str() == "system");
        let mode = match mode {
            // Anybody gets a certificate from one of them; so the name is what counts.
            None if of_system => Mode::VerifyFull,
            Some(mode) if of_system && mode != Mode::VerifyFull => {
                return Err("sslrootcert=system in --database-url goes with sslmode=verify-full only".into());
            }
            Some(Mode::VerifyCa) if tls.root.is_none() => {
                return Err("sslmode=verify-ca in --database-url needs sslrootcert".into());
            }
            mode => mode.unwrap_or_default(),
        };
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err("sslcert and sslkey belong together in --database-url".into());
        }
        tls.checks = match mode {
            // With a root at hand libpq checks the chain even where it was not told to.
            Mode::Require if tls.root.is_some() => Checks::Chain,
            Mode::Disable | Mode::Prefer | Mode::Require => Checks::Nothing,
            Mode::VerifyCa => Checks::Chain,
            Mode::VerifyFull => Checks::ChainAndName,
        };
        config.ssl_mode(match mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        if config.get_hosts().len() > 1 && config.get_target_session_attrs() == TargetSessionAttrs::Any {
            // The first that answers may be a standby, and hexlane has nothing to do there.
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        Ok(Self { config, tls })
    }
}

impl Mode {
    fn parse(word: &str) -> Result<Self, String> {
        Ok(match word {
            "disable" => Self::Disable,
            "prefer" | "allow" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return Err("sslmode in --database-url is disable, prefer, require, verify-ca or verify-full".into()),
        })
    }
}

/// Taken out: name and value.
type Taken = Vec<(String, String)>;

fn is_about_tls(name: &str) -> bool {
    matches!(name, "sslmode" | "sslrootcert" | "sslcert" | "sslkey")
}

fn from_url(text: &str) -> (String, Taken) {
    // As the driver reads it: what stands before the first `@` is user and password.
    let after_user = text.find('@').unwrap_or(0);
    let question = text.get(after_user..).and_then(|rest| rest.find('?'));
    let Some((place, query)) =
        question.and_then(|found| Some((text.get(..after_user + found)?, text.get(after_user + found + 1..)?)))
    else {
        return (text.to_owned(), Taken::new());
    };
    let (mut rest, mut taken) = (Vec::new(), Taken::new());
    for part in query.split('&') {
        match part.split_once('=') {
            Some((name, value)) if is_about_tls(name) => {
                let value = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
                taken.push((name.to_owned(), value.into_owned()));
            }
            _ => rest.push(part),
        }
    }
    (format!("{place}?{}", rest.join("&")), taken)
}

/// `name = value`, where a value with blanks stands in single quotes, and a backslash before what is meant as it is.
fn from_keywords(text: &str) -> Option<(String, Taken)> {
    let (mut rest, mut taken) = (String::new(), Taken::new());
    let mut left = text.trim_start();
    while !left.is_empty() {
        let (name, after) = left.split_once('=')?;
        let name = name.trim();
        let after = after.trim_start();
        let quoted = after.starts_with('\'');
        let (mut value, mut end, mut escaped) = (String::new(), None, false);
        for (place, c) in after.char_indices().skip(usize::from(quoted)) {
            match c {
                _ if escaped => (value.push(c), escaped = false).1,
                '\\' => escaped = true,
                '\'' if quoted => {
                    end = Some(place + 1);
                    break;
                }
                c if c.is_whitespace() && !quoted => {
                    end = Some(place);
                    break;
                }
                c => value.push(c),
            }
        }
        let end = end.unwrap_or(after.len());
        if is_about_tls(name) {
            taken.push((name.to_owned(), value));
        } else {
            rest.push_str(&format!("{name}={} ", after.get(..end)?));
        }
        left = after.get(end..)?.trim_start();
    }
    Some((rest, taken))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_about_tls_are_taken_out_of_both_forms() {
        let url = "postgres://u:p@a:1,b:2/d?application_name=x&sslmode=verify-full&sslrootcert=%2Fca.pem";
        let keywords = "host=a,b port=1,2 user=u password='p' dbname=d sslmode = 'verify-full' sslrootcert=/ca.pem";
        for text in [url, keywords] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address.config.get_hosts().len(), 2, "{text}");
            assert_eq!(address.config.get_ports(), [1, 2]);
            assert_eq!(address.config.get_password(), Some(b"p".as_slice()));
            assert_eq!(address.config.get_ssl_mode(), SslMode::Require);
            assert_eq!(address.config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
            assert_eq!(address.tls.checks, Checks::ChainAndName);
            assert_eq!(address.tls.root, Some(PathBuf::from("/ca.pem")));
        }
        for text in ["postgres://u:p?x@h/d?sslmode=require", "host=h user=u password=a://b sslmode=require"] {
            assert_eq!(Address::parse(text).unwrap().config.get_ssl_mode(), SslMode::Require, "{text}");
        }
        let system = Address::parse("postgres://h/d?sslrootcert=system").unwrap();
        assert_eq!((system.tls.checks, system.config.get_ssl_mode()), (Checks::ChainAndName, SslMode::Require));
        for text in ["postgres://h/d?sslmode=verify-ca", "postgres://h/d?sslmode=require&sslrootcert=system"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        let odd = Address::parse(r"host=/tmp user='o\'neil x' password=a\'b sslmode=disable").unwrap();
        assert_eq!(odd.config.get_user(), Some("o'neil x"));
        assert_eq!(odd.config.get_password(), Some(b"a'b".as_slice()));
        assert_eq!(odd.config.get_ssl_mode(), SslMode::Disable);
    }

    #[test]
    fn what_is_wrong_is_told_without_the_password() {
        for text in
            ["postgres://u:secret@h/d?sslmode=maybe", "postgres://u:secret@h/d?sslcert=/c", "secret", "user=secret"]
        {
            let sentence = Address::parse(text).unwrap_err();
            assert!(!sentence.contains("secret"), "{sentence}");
        }
    }
}
