//! The names under which WGS 84, longitude first, is known.

use serde_json::value::RawValue;

use super::{Fault, json};
use crate::event::Reason;

/// Whether `name` means WGS 84 with the longitude first.
///
/// `EPSG:4326` has the latitude first by the letter of its definition; GeoJSON does not care, and
/// neither does any producer met so far.
fn is_wgs84(name: &str) -> bool {
    if name == "EPSG:4326" {
        return true;
    }
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix("urn:ogc:def:crs:").map_or(name.as_str(), urn_name);
    let name = name.strip_prefix("http://").or_else(|| name.strip_prefix("https://")).unwrap_or(name);
    matches!(
        name,
        "epsg:4326"
            | "crs84"
            | "ogc:crs84"
            | "www.opengis.net/def/crs/epsg/0/4326"
            | "www.opengis.net/def/crs/ogc/1.3/crs84"
    )
}

/// The short name of `authority:version:code`; the version says nothing about these two.
fn urn_name(urn: &str) -> &str {
    let mut parts = urn.split(':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some("epsg"), Some(_), Some("4326"), None) => "epsg:4326",
        (Some("ogc"), Some("" | "1.3"), Some("crs84"), None) => "ogc:crs84",
        _ => "",
    }
}

/// The event's member `crs`, `null` and absent being the default.
pub(super) fn check(value: Option<&RawValue>) -> Result<(), Fault> {
    let Some(value) = json::not_null(value) else { return Ok(()) };
    if !json::is_string(value) {
        return Err(Fault::new(Reason::BadField, "crs is not a string"));
    }
    match json::string(value) {
        Some(name) if is_wgs84(&name) => Ok(()),
        _ => Err(unsupported("crs", value)),
    }
}

/// The member `crs` of a GeoJSON object, which RFC 7946 dropped: as it could only contradict the
/// event, it has to say the same.
pub(super) fn check_member(value: Option<&RawValue>) -> Result<(), Fault> {
    let Some(value) = json::not_null(value) else { return Ok(()) };
    if named(value).is_some_and(|name| is_wgs84(&name)) { Ok(()) } else { Err(unsupported("the member crs", value)) }
}

/// The name in `"…"` or in `{"type":"name","properties":{"name":"…"}}`.
fn named(value: &RawValue) -> Option<String> {
    if json::is_string(value) {
        return json::string(value).map(Into::into);
    }
    let (members, result) = json::members(value.get(), &["properties"]);
    result.ok()?;
    let [properties] = members.values;
    let (members, result) = json::members(properties?.get(), &["name"]);
    result.ok()?;
    let [name] = members.values;
    json::string(name?).map(Into::into)
}

fn unsupported(what: &str, value: &RawValue) -> Fault {
    let shown: String = value.get().chars().take(100).collect();
    Fault::new(
        Reason::UnsupportedCrs,
        format!("{what} is {shown}; only EPSG:4326 and OGC:CRS84, longitude first, are taken; nothing is reprojected"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_names_of_wgs84() {
        for name in [
            "EPSG:4326",
            "epsg:4326",
            "urn:ogc:def:crs:EPSG::4326",
            "urn:ogc:def:crs:EPSG:9.9.1:4326",
            "OGC:CRS84",
            "CRS84",
            "urn:ogc:def:crs:OGC:1.3:CRS84",
            "urn:ogc:def:crs:OGC::CRS84",
            "http://www.opengis.net/def/crs/EPSG/0/4326",
            "https://www.opengis.net/def/crs/OGC/1.3/CRS84",
        ] {
            assert!(is_wgs84(name), "{name}");
        }
        for name in [
            "",
            "EPSG:3857",
            "4326",
            " EPSG:4326",
            "EPSG:4326\0",
            "EPSG:43260",
            "urn:ogc:def:crs:EPSG:4326",
            "urn:ogc:def:crs:EPSG::4326:0",
            "urn:ogc:def:crs:EPSG:4326",
            "urn:ogc:def:crs:crs84",
            "http://EPSG:4326x",
            "OGC:CRS83",
        ] {
            assert!(!is_wgs84(name), "{name}");
        }
    }
}
