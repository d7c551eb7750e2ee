//! Bytes as text: escaped, or as hexadecimal digits.
use crate::failure::Failure;
use std::fmt::Write;

/// The bytes that an argument stands for.
pub fn parse(argument: &str, hex: bool) -> Result<Vec<u8>, Failure> {
    if !hex {
        return Ok(argument.as_bytes().to_vec());
    }
    let digits = argument.as_bytes();
    let byte = |pair: &[u8]| {
        let &[high, low] = pair else { return None };
        let value = |digit: u8| char::from(digit).to_digit(16);
        Some((value(high)? << 4 | value(low)?) as u8)
    };
    digits
        .chunks(2)
        .map(byte)
        .collect::<Option<_>>()
        .ok_or_else(|| {
            Failure::Usage(format!(
                "{argument:?} is not an even number of hexadecimal digits"
            ))
        })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// One line of text, whatever the bytes are: tabs, line ends, backslashes and what is not UTF-8 become escapes.
pub fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\t' | '\n' | '\r' => text.extend(character.escape_default()),
                control if control.is_control() => {
                    let mut utf8 = [0; 4];
                    for byte in control.encode_utf8(&mut utf8).bytes() {
                        let _ = write!(text, "\\x{byte:02x}");
                    }
                }
                printable => text.push(printable),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The bytes that [`escaped`] made this text of; `None` if it cannot have.
pub fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    let digit = |rest: &mut dyn Iterator<Item = u8>| char::from(rest.next()?).to_digit(16);
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next()? {
            b'\\' => b'\\',
            b't' => b'\t',
            b'n' => b'\n',
            b'r' => b'\r',
            b'x' => (digit(&mut rest)? << 4 | digit(&mut rest)?) as u8,
            _ => return None,
        });
    }
    Some(bytes)
}

pub fn show(bytes: &[u8], as_hex: bool) -> String {
    if as_hex { hex(bytes) } else { escaped(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_both_ways() {
        assert_eq!(parse("00fF7a", true).expect("digits"), [0, 255, 0x7a]);
        assert_eq!(hex(&[0, 255, 0x7a]), "00ff7a");
        assert!(parse("abc", true).is_err());
        assert!(parse("zz", true).is_err());
        assert!(parse("+1", true).is_err());
        assert!(parse("éé", true).is_err());
    }

    #[test]
    fn escapes_keep_one_entry_on_one_line() {
        assert_eq!(escaped(b"a\tb\n\\\x00\xff"), "a\\tb\\n\\\\\\x00\\xff");
        assert_eq!(escaped("größe".as_bytes()), "größe");
    }

    #[test]
    fn escapes_can_be_taken_back() {
        let all: Vec<u8> = (0..=255).chain("größe\\x\u{85}".bytes()).collect();
        let text = escaped(&all);
        assert!(!text.contains(['\t', '\n', '\r']));
        assert_eq!(unescaped(text.as_bytes()), Some(all));
        for wrong in ["\\", "\\q", "\\x", "\\x1", "\\xg0"] {
            assert_eq!(unescaped(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
