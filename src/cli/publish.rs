//! Options of `hexlane publish`, and which of them contradict each other.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{LimitArgs, RedisArgs, TopologyArgs};

/// What `hexlane publish` reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// NDJSON: one event a line.
    Events,
    /// One FeatureCollection, or one Feature (RFC 7946).
    Geojson,
    /// One GeoJSON Feature a line.
    GeojsonLines,
    /// GeoJSON Features as a text sequence (RFC 8142).
    GeojsonSeq,
}

impl InputFormat {
    /// As GDAL names such files: <https://gdal.org/en/stable/drivers/vector/geojsonseq.html>.
    pub fn of(file: &Path) -> Self {
        match file.extension().and_then(|ending| ending.to_str()) {
            Some("geojson") => Self::Geojson,
            Some("geojsonl") => Self::GeojsonLines,
            Some("geojsons") => Self::GeojsonSeq,
            _ => Self::Events,
        }
    }
}

/// Options of `hexlane publish`.
#[derive(Clone, Debug, Args)]
pub struct PublishArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub redis: RedisArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub topology: TopologyArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub limits: LimitArgs,
    /// Files of events or GeoJSON features; - is stdin.
    #[arg(default_value = "-")]
    pub files: Vec<PathBuf>,
    /// What is in the files [default: by their names; .geojson, .geojsonl and .geojsons, else events].
    #[arg(long, env = "HEXLANE_FORMAT", value_enum)]
    pub format: Option<InputFormat>,
    /// Of GeoJSON: the property that holds the feature_id [default: the feature's id].
    #[arg(long, env = "HEXLANE_ID_PROPERTY")]
    pub id_property: Option<String>,
    /// Of GeoJSON: the property that holds the version, an integer [default: all have version 0].
    #[arg(long, env = "HEXLANE_VERSION_PROPERTY")]
    pub version_property: Option<String>,
    /// Of GeoJSON: the property that holds the observation time, RFC 3339 [default: now].
    #[arg(long, env = "HEXLANE_TIME_PROPERTY")]
    pub time_property: Option<String>,
    /// Send every line as it is, valid or not.
    #[arg(long, env = "HEXLANE_UNCHECKED", value_parser = clap::builder::FalseyValueParser::new())]
    pub unchecked: bool,
    /// Only check, send nothing.
    #[arg(long, env = "HEXLANE_DRY_RUN", value_parser = clap::builder::FalseyValueParser::new())]
    pub dry_run: bool,
    /// Stop at the first line that is refused.
    #[arg(long, env = "HEXLANE_STRICT", value_parser = clap::builder::FalseyValueParser::new())]
    pub strict: bool,
}

impl PublishArgs {
    /// Refuses settings that contradict each other. Not by the parser, to which a variable that is
    /// set to `false` is an option that was given.
    ///
    /// # Errors
    /// A sentence that names both.
    pub fn check(&self) -> Result<(), String> {
        let is_events = |file: &PathBuf| self.format.unwrap_or_else(|| InputFormat::of(file)) == InputFormat::Events;
        if self.unchecked && !self.files.iter().all(is_events) {
            return Err("--unchecked sends lines as they are, and GeoJSON is made into events".into());
        }
        let property = [
            ("--id-property", &self.id_property),
            ("--version-property", &self.version_property),
            ("--time-property", &self.time_property),
        ]
        .into_iter()
        .find(|(_, property)| property.is_some());
        if let Some((option, _)) = property
            && self.files.iter().any(is_events)
        {
            return Err(format!("{option} is for GeoJSON features; say with --format what is in the files"));
        }
        match (self.unchecked, self.dry_run, self.strict) {
            (true, true, _) => Err("--dry-run only checks, and --unchecked does not check".into()),
            (true, _, true) => Err("--strict stops at a line that is refused, and --unchecked refuses none".into()),
            _ => Ok(()),
        }
    }
}
