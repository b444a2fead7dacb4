//! A GeoJSON Feature as an event: <https://datatracker.ietf.org/doc/html/rfc7946#section-3.2>.

use serde_json::value::RawValue;

use crate::event::{Reason, Rejection};
use crate::judge::{self, json};

/// Where a feature says what an event needs.
pub(super) struct Rules {
    /// The property with the `feature_id`; `None`: the feature's member `id`.
    pub(super) id: Option<String>,
    /// The property with the version; `None`: every version is 0.
    pub(super) version: Option<String>,
    /// The property with the observation time; `None`: all were observed when the command started.
    pub(super) time: Option<String>,
    /// When that was, as JSON.
    pub(super) started: String,
}

impl Rules {
    /// The text of an event that lands the feature. Its geometry and properties are as they were
    /// written, and not looked into.
    ///
    /// # Errors
    /// The first thing that is not as RFC 7946 or these rules want it.
    pub(super) fn event(&self, text: &[u8]) -> Result<Vec<u8>, Box<Rejection>> {
        let text = std::str::from_utf8(text).map_err(|error| not_json(format!("not UTF-8: {error}")))?;
        let text = text.trim_ascii();
        if json::is_too_deep(text.as_bytes()) {
            return Err(not_json(format!("brackets nest deeper than {}", json::MAX_DEPTH)));
        }
        let (members, result) = json::members(text, &["type", "id", "geometry", "properties", "crs"]);
        result.map_err(|error| not_json(format!("not a JSON object: {error}")))?;
        if let Some(name) = members.twice {
            return Err(not_json(format!("the member {name} stands twice")));
        }
        let [kind, id, geometry, properties, crs] = members.values;
        if kind.and_then(json::string).as_deref() != Some("Feature") {
            let shown = kind.map_or("missing", RawValue::get);
            return Err(bad(format!("its type is {shown}, not \"Feature\"")));
        }
        judge::check_member_crs(crs)?;
        let properties = json::not_null(properties).map_or("{}", RawValue::get);
        let id = match &self.id {
            Some(name) => property(properties, name, "--id-property")?,
            None => json::not_null(id).ok_or_else(|| {
                missing("the feature has no id; --id-property names a property that is to be taken instead".into())
            })?,
        };
        let version = match &self.version {
            Some(name) => property(properties, name, "--version-property")?.get(),
            None => "0",
        };
        let time = match &self.time {
            Some(name) => property(properties, name, "--time-property")?.get(),
            None => &self.started,
        };
        let id = match id.get() {
            string if string.starts_with('"') => string.to_owned(),
            number if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => format!("\"{number}\""),
            other => return Err(bad(format!("the feature's id is {other}, not a string or a number"))),
        };
        let geometry = geometry.map_or("null", RawValue::get);
        let event = format!(
            r#"{{"feature_id":{id},"version":{version},"op":"update","observation_time":{time},"geometry":{geometry},"properties":{properties}}}"#
        );
        Ok(event.into_bytes())
    }
}

/// The value of a property that has to be there.
fn property<'t>(properties: &'t str, name: &str, option: &str) -> Result<&'t RawValue, Box<Rejection>> {
    let (members, result) = json::members(properties, &[name]);
    result.map_err(|_| bad(format!("properties is not an object, and {option} asks for one of them")))?;
    if members.twice.is_some() {
        return Err(bad(format!("the property {name} ({option}) stands twice")));
    }
    let [value] = members.values;
    json::not_null(value).ok_or_else(|| missing(format!("the property {name} ({option}) is missing")))
}

fn not_json(detail: String) -> Box<Rejection> {
    Box::new(Rejection::new(Reason::NotJson, detail))
}

fn bad(detail: String) -> Box<Rejection> {
    Box::new(Rejection::new(Reason::BadField, detail))
}

fn missing(detail: String) -> Box<Rejection> {
    Box::new(Rejection::new(Reason::MissingField, detail))
}
