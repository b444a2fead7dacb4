//! The features of a FeatureCollection, one after the other, however long the file is.
//! See <https://datatracker.ietf.org/doc/html/rfc7946#section-3.3>.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, Read};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::judge;

/// Hands every feature to `each` with its number, from 1 on, until it answers false. A file that is
/// one single Feature is taken as well.
///
/// # Errors
/// A sentence: what is no FeatureCollection, or from where on it is none. What came before it has
/// been handed on.
pub(super) fn read(
    input: impl BufRead,
    longest: usize,
    mut each: impl FnMut(u64, Vec<u8>) -> bool,
) -> Result<(), String> {
    let left = Cell::new(longest);
    let meter = Meter { left: &left, longest };
    let mut deserializer = serde_json::Deserializer::from_reader(Metered { input, left: &left });
    let mut number = 0;
    let features = &mut |feature: Vec<u8>| {
        number += 1;
        each(number, feature)
    };
    deserializer
        .deserialize_map(Collection { meter: &meter, features })
        .and_then(|()| {
            meter.reset();
            deserializer.end()
        })
        .map_err(|error| match error.classify() {
            serde_json::error::Category::Data => error.to_string(),
            serde_json::error::Category::Io => format!("not read any further: {error}"),
            _ => format!("not JSON from there on: {error}"),
        })
}

/// Bounds how much is read for one value.
struct Meter<'m> {
    left: &'m Cell<usize>,
    longest: usize,
}

impl Meter<'_> {
    fn reset(&self) {
        // Room for what stands around a value.
        self.left.set(self.longest.saturating_add(1024));
    }
}

struct Metered<'m, R> {
    input: R,
    left: &'m Cell<usize>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        match self.left.get().checked_sub(read) {
            Some(left) => {
                self.left.set(left);
                Ok(read)
            }
            None => Err(io::Error::other("a feature or member is longer than --max-event-bytes")),
        }
    }
}

type EachFeature<'f> = &'f mut dyn FnMut(Vec<u8>) -> bool;

struct Collection<'m, 'f> {
    meter: &'m Meter<'m>,
    features: EachFeature<'f>,
}

impl<'de> Visitor<'de> for Collection<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a FeatureCollection")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut kind: Option<String> = None;
        let mut has_features = false;
        let mut members: Vec<(String, Box<RawValue>)> = Vec::new();
        self.meter.reset();
        while let Some(name) = map.next_key::<String>()? {
            match name.as_str() {
                "type" => {
                    let found: String = map.next_value()?;
                    if found != "FeatureCollection" && found != "Feature" {
                        let found = found.escape_debug();
                        return Err(A::Error::custom(format!("its type is \"{found}\", not \"FeatureCollection\"")));
                    }
                    kind = Some(found);
                }
                "features" if kind.as_deref() != Some("Feature") => {
                    has_features = true;
                    map.next_value_seed(Features { meter: self.meter, each: &mut *self.features })?;
                }
                "crs" => {
                    let crs: Box<RawValue> = map.next_value()?;
                    judge::check_member_crs(Some(&crs)).map_err(|rejection| A::Error::custom(rejection.detail))?;
                }
                "id" | "geometry" | "properties" => members.push((name, map.next_value()?)),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
            self.meter.reset();
        }
        match kind.as_deref() {
            Some("Feature") => {
                let members: Vec<String> =
                    members.into_iter().map(|(name, value)| format!(",\"{name}\":{value}")).collect();
                (self.features)(format!("{{\"type\":\"Feature\"{}}}", members.concat()).into_bytes());
                Ok(())
            }
            Some(_) if has_features => Ok(()),
            Some(_) => Err(A::Error::custom("the FeatureCollection has no member features")),
            None => Err(A::Error::custom("it has no type; a FeatureCollection says that it is one")),
        }
    }
}

struct Features<'m, 'f> {
    meter: &'m Meter<'m>,
    each: EachFeature<'f>,
}

impl<'de> DeserializeSeed<'de> for Features<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Features<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of features")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut features: A) -> Result<(), A::Error> {
        self.meter.reset();
        while let Some(feature) = features.next_element::<Box<RawValue>>()? {
            self.meter.reset();
            if !(self.each)(String::from(Box::<str>::from(feature)).into_bytes()) {
                return Err(A::Error::custom("nobody wants more"));
            }
        }
        Ok(())
    }
}
