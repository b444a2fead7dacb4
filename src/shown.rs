//! What comes from outside, as somebody's terminal may get it: it must not move the cursor, turn the direction of
//! text, or hide.

use serde_json::Value;

/// Control characters, marks that turn the direction of text, and what is not seen at all.
pub(crate) fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// With such characters by their numbers.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    out
}

/// One line. JSON lets some of these characters stand as they are (RFC 8259, section 7); as escapes they are the same.
pub(crate) fn json_line(value: &Value) -> String {
    let (text, mut out) = (value.to_string(), String::new());
    for c in text.chars() {
        if is_hidden(c) {
            let mut units = [0; 2];
            out.extend(c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out.push('\n');
    out
}
