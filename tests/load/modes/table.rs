//! What the settings of table and index cost or gain, where most events are updates.

use crate::bench::{self, Order, Prepared};
use crate::cli::{Common, Load, Table};
use crate::report::Report;
use crate::server::Servers;

const BATCH: usize = 5000;

/// What is changed in the schema as it is shipped.
const VARIANTS: [(&str, &str); 11] = [
    ("as shipped", ""),
    ("fillfactor 100", "ALTER TABLE feature_state SET (fillfactor = 100)"),
    ("fillfactor 85", "ALTER TABLE feature_state SET (fillfactor = 85)"),
    ("fillfactor 50", "ALTER TABLE feature_state SET (fillfactor = 50)"),
    (
        "ids in ICU order",
        "DROP VIEW feature; ALTER TABLE feature_state ALTER feature_id TYPE text COLLATE \"und-x-icu\"",
    ),
    ("GiST fillfactor 70", "ALTER INDEX feature_state_geometry SET (fillfactor = 70); REINDEX TABLE feature_state"),
    (
        "SP-GiST index",
        "DROP INDEX feature_state_geometry; CREATE INDEX feature_state_geometry ON feature_state USING spgist (geometry)",
    ),
    ("autovacuum unthrottled", "ALTER TABLE feature_state SET (autovacuum_vacuum_cost_delay = 0)"),
    ("no autovacuum", "ALTER TABLE feature_state SET (autovacuum_enabled = off)"),
    ("no GiST index", "DROP INDEX feature_state_geometry"),
    ("unlogged", "ALTER TABLE feature_state SET UNLOGGED"),
];

/// README's way to a table in partitions.
fn partitioned() -> &'static str {
    let (_, rest) = include_str!("../../../README.md").split_once("**Partitions by hash").expect("README has it");
    let (_, block) = rest.split_once("```sql\n").expect("and the SQL");
    block.split_once("```").expect("the block ends").0
}

pub async fn table(servers: &mut Servers, common: &Common, table: &Table) -> Report {
    let mut report = Report::default();
    let passes: Vec<Prepared> = (0..table.passes)
        .map(|pass| {
            let first_version = table.load.first_version + (pass * table.load.events) as i64;
            Prepared::new(&Load { first_version, ..table.load.clone() })
        })
        .collect();
    let variants = || VARIANTS.into_iter().chain([("8 partitions", partitioned())]);
    for _ in 0..common.runs {
        for (name, sql) in variants() {
            servers.renew().await;
            servers.postgres.batch_execute(sql).await.expect("the variant can be made");
            servers.fill(table.load.features).await;
            let mut rates = Vec::new();
            for pass in &passes {
                rates.push(bench::bare(servers, pass, Order::Published, BATCH).await.0);
            }
            let (first, last) = (rates[0], rates[rates.len() - 1]);
            report.add(format!("{name}: last pass"), last, "events/s");
            report.add(format!("{name}: last pass / first pass"), last / first, "ratio");
            let (heap, indexes) = servers.sizes_mib().await;
            report.add(format!("{name}: table"), heap, "MiB");
            report.add(format!("{name}: indexes"), indexes, "MiB");
        }
    }
    let shipped = report.median("as shipped: last pass");
    for (name, _) in variants() {
        let rate = report.median(&format!("{name}: last pass"));
        report.ratio(format!("{name} / as shipped"), rate / shipped);
    }
    report
}
