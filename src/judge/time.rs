//! RFC 3339 timestamps, to the microsecond.

use chrono::{DateTime, Datelike};

/// Microseconds since 1970, cut to what `timestamptz` holds, or what is wrong with the text.
///
/// A leap second is the first second of the next minute, as in PostgreSQL.
pub(super) fn parse(text: &str) -> Result<i64, &'static str> {
    if !has_the_form(text.as_bytes()) {
        return Err("is not an RFC 3339 time with an offset, like 2026-07-13T12:00:01Z");
    }
    let time = DateTime::parse_from_rfc3339(text).map_err(|_| "is not a time of the calendar")?;
    let micros = time.timestamp_micros();
    let utc_year = DateTime::from_timestamp_micros(micros).map_or(0, |utc| utc.year());
    if time.year() < 1 || !(1..=9999).contains(&utc_year) {
        return Err("is outside the years 1 to 9999");
    }
    Ok(micros)
}

/// The grammar of RFC 3339 section 5.6, to the letter: the library also takes a blank for the `T`,
/// and more.
fn has_the_form(text: &[u8]) -> bool {
    const DATE_AND_TIME: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let Some((head, tail)) = text.split_at_checked(DATE_AND_TIME.len()) else { return false };
    let fits = |form: &[u8], text: &[u8]| {
        form.len() == text.len()
            && form.iter().zip(text).all(|(form, byte)| match form {
                b'd' => byte.is_ascii_digit(),
                form => form.eq_ignore_ascii_case(byte),
            })
    };
    let offset = match tail {
        [b'.', fraction @ ..] => {
            let digits = fraction.iter().take_while(|b| b.is_ascii_digit()).count();
            if digits == 0 {
                return false;
            }
            fraction.get(digits..).unwrap_or_default()
        }
        tail => tail,
    };
    fits(DATE_AND_TIME, head)
        && match offset {
            [b'+' | b'-', hours_and_minutes @ ..] => {
                fits(b"dd:dd", hours_and_minutes)
                    && hours_and_minutes < b"24".as_slice()
                    && hours_and_minutes.get(3).is_some_and(|b| *b < b'6')
            }
            offset => fits(b"Z", offset),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_spelling_of_an_instant() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01t01:00:00.000001999+01:00", 1),
            ("1969-12-31T23:59:59.9999999z", -1),
            ("1970-01-01T00:00:00-00:00", 0),
            ("1970-01-01T23:59:00+23:59", 0),
            ("1972-06-30T23:59:60Z", 78_796_800_000_000),
            ("1970-01-01T00:00:00.0000000000000000000001Z", 0),
        ] {
            assert_eq!(parse(text), Ok(micros), "{text}");
        }
    }

    #[test]
    fn refuses_what_rfc_3339_does_not_allow() {
        for text in [
            "",
            "now",
            "infinity",
            "1970-01-01",
            "1970-01-01 00:00:00Z",
            "1970-01-01T00:00:00",
            "1970-01-01T00:00Z",
            "1970-01-01T00:00:00.Z",
            "1970-01-01T00:00:00,5Z",
            "1970-01-01T00:00:00+0100",
            "1970-01-01T00:00:00+24:00",
            "1970-01-01T00:00:00+01:60",
            "1970-01-01T00:00:00\u{2212}01:00",
            "1970-01-01T00:00:00Z ",
            "1970-02-30T00:00:00Z",
            "1970-01-01T24:00:00Z",
            "1970-01-01T00:00:61Z",
            "0000-01-01T00:00:00Z",
            "0001-01-01T00:00:00+01:00",
            "9999-12-31T23:59:60Z",
            "10000-01-01T00:00:00Z",
            "+1970-01-01T00:00:00Z",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
