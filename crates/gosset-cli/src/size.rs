//! Sizes in bytes as people write them.

/// Units: decimal ones as disks and files are sold, binary ones as memory is.
const UNITS: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads `60000000`, `500MB`, `7.5 GB` or `60MiB`; the case of letters does not matter, fractions of a byte are dropped.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let expected = || "expected a size such as 60000000, 500MB, 7.5GB or 60MiB".to_owned();
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim());
    let &(_, factor) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(expected)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).ok_or_else(expected);
    }
    let bytes = number.parse::<f64>().map_err(|_| expected())? * factor as f64;
    // 2^64 as f64; what is below converts exactly but for the fraction.
    if bytes < 18_446_744_073_709_551_616.0 { Ok(bytes as u64) } else { Err(expected()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_both_kinds_of_units() {
        for (text, bytes) in [
            ("0", 0),
            ("60000000", 60_000_000),
            ("8GB", 8_000_000_000),
            ("500mb", 500_000_000),
            ("7.5 GB", 7_500_000_000),
            ("60MiB", 60 << 20),
            ("1.5kib", 1536),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "GB", "8G", "8 G B", "-1", "1e9", "1.2.3MB", "18446744073709551616", "20000000TiB", "nan", "8GBit"]
        {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
