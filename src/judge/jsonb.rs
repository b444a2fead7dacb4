//! Whether PostgreSQL's `jsonb` can hold a JSON text. The text is known to be good JSON.

/// `numeric` takes this many digits before the point and that many after it.
/// See <https://www.postgresql.org/docs/current/datatype-numeric.html>.
const DIGITS_BEFORE_POINT: i64 = 131_072;
const DIGITS_AFTER_POINT: i64 = 16_383;

/// What of `json` cannot be stored, if anything.
pub(super) fn obstacle(json: &str) -> Option<&'static str> {
    let escapes = json.contains("\\u");
    if !escapes && !may_have_wide_number(json.as_bytes()) {
        return None;
    }
    let mut rest = json.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = match byte {
            b'"' => match skip_string(after) {
                Ok(after) => after,
                Err(obstacle) => return Some(obstacle),
            },
            b'-' | b'0'..=b'9' => {
                let length = rest.iter().take_while(|b| is_numeric(**b)).count();
                let (number, after) = rest.split_at_checked(length)?;
                if !fits_numeric(number) {
                    return Some("hold a number beyond what PostgreSQL's numeric can store");
                }
                after
            }
            _ => after,
        };
    }
    None
}

/// A hint only, and a cheap one, many bytes at once: without an exponent a number has to be long itself. Digits and
/// letters in strings count too.
fn may_have_wide_number(json: &[u8]) -> bool {
    let has_exponent = |found, (before, byte): (&u8, &u8)| found | (before.is_ascii_digit() & (byte | 0x20 == b'e'));
    json.len() > DIGITS_AFTER_POINT as usize || json.iter().zip(json.iter().skip(1)).fold(false, has_exponent)
}

fn is_numeric(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')
}

fn fits_numeric(number: &[u8]) -> bool {
    let (mantissa, exponent) = match number.iter().position(|b| matches!(b, b'e' | b'E')) {
        Some(at) => (number.get(..at), number.get(at + 1..)),
        None => (Some(number), None),
    };
    let mut halves = mantissa.unwrap_or_default().split(|b| *b == b'.');
    let whole = halves.next().unwrap_or_default();
    let fraction = halves.next().unwrap_or_default();
    let exponent = match exponent {
        Some(digits) => match std::str::from_utf8(digits).ok().and_then(|d| d.parse::<i64>().ok()) {
            // PostgreSQL gives up on such an exponent even where the number is 0.
            Some(exponent) if exponent.abs() < i64::from(i32::MAX / 2) => exponent,
            _ => return false,
        },
        None => 0,
    };
    let length = |digits: &[u8]| i64::try_from(digits.len()).unwrap_or(i64::MAX / 2);
    let after_point = length(fraction) - exponent;
    after_point <= DIGITS_AFTER_POINT && leading_place(whole, fraction) + exponent <= DIGITS_BEFORE_POINT
}

/// How many digits stand before the point, counted from the first that is not 0; negative if that
/// one comes after the point.
fn leading_place(whole: &[u8], fraction: &[u8]) -> i64 {
    let whole = whole.strip_prefix(b"-").unwrap_or(whole);
    let all = whole.iter().chain(fraction);
    match all.clone().position(|b| *b != b'0') {
        Some(zeros) => {
            i64::try_from(whole.len()).unwrap_or(i64::MAX / 2) - i64::try_from(zeros).unwrap_or(i64::MAX / 2)
        }
        None => i64::from(i32::MIN),
    }
}

/// What follows the string whose opening quote is gone.
fn skip_string(mut rest: &[u8]) -> Result<&[u8], &'static str> {
    const SURROGATE: &str = "hold half of a surrogate pair, which is no character";
    loop {
        rest = match rest {
            [b'"', after @ ..] => return Ok(after),
            [b'\\', b'u', after @ ..] => match code_unit(after) {
                Some((0, _)) => return Err("hold U+0000, which PostgreSQL cannot store"),
                Some((0xd800..=0xdbff, [b'\\', b'u', after @ ..])) => match code_unit(after) {
                    Some((0xdc00..=0xdfff, after)) => after,
                    _ => return Err(SURROGATE),
                },
                Some((0xd800..=0xdfff, _)) | None => return Err(SURROGATE),
                Some((_, after)) => after,
            },
            [b'\\', _, after @ ..] | [_, after @ ..] => after,
            [] => return Ok(rest),
        };
    }
}

fn code_unit(text: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, after) = text.split_at_checked(4)?;
    let unit = u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    Some((unit, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_jsonb_refuses() {
        let long = |digits: usize| format!(r#"{{"a":{}}}"#, "9".repeat(digits));
        let fraction = |digits: usize| format!(r#"{{"a":0.{}}}"#, "9".repeat(digits));
        for good in [
            r#"{"a":"\u0041\ud83d\ude00","b":1e308}"#,
            r#"{"a":"\\u0000","b":"\"\\"}"#,
            r#"{"a":"id1e99999999","b":-0.0e-5}"#,
            r#"{"a":1e131071}"#,
            r#"{"a":0.001e131074}"#,
            r#"{"a":1E-16383}"#,
            r#"{"a":0e200000}"#,
            &long(131_072),
            &fraction(16_383),
        ] {
            assert_eq!(obstacle(good), None, "{good}");
        }
        for bad in [
            r#"{"a":"x\u0000y"}"#,
            r#"{"\u0000":1}"#,
            r#"{"a":["\ud800"]}"#,
            r#"{"a":"\udc00"}"#,
            r#"{"a":"\ud800\u0041"}"#,
            r#"{"a":"\ud800\ud800\udc00"}"#,
            r#"{"a":1e131072}"#,
            r#"{"a":10e131071}"#,
            r#"{"a":1e-16384}"#,
            r#"{"a":1E-16384}"#,
            r#"{"a":1e99999999999999999999}"#,
            &long(131_073),
            &fraction(16_384),
        ] {
            assert!(obstacle(bad).is_some(), "{bad}");
        }
    }
}
