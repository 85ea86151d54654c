//! Costs of frequencies in fixed point, by integer arithmetic, so that every machine makes the same choices.

use super::{COST_BITS, TABLE_LEN, TABLE_LOG};

/// Cost of a symbol of each frequency in units of 2^-16 bit; that of frequency 0, which no table has, is 0.
static COSTS: [u32; TABLE_LEN + 1] = costs();

const fn costs() -> [u32; TABLE_LEN + 1] {
    let mut costs = [0; TABLE_LEN + 1];
    let mut freq = 1;
    while freq <= TABLE_LEN {
        costs[freq] = (TABLE_LOG << COST_BITS) - log2(freq as u32);
        freq += 1;
    }
    costs
}

/// log2(x) in units of 2^-16, rounded down, for 0 < x < 2^16: the binary digits are those that repeated squaring of the
/// mantissa shifts out.
const fn log2(x: u32) -> u32 {
    let exponent = x.ilog2();
    // The mantissa in [1, 2) with 31 fractional bits.
    let mut mantissa = (x as u64) << (31 - exponent);
    let mut digits = exponent;
    let mut i = 0;
    while i < COST_BITS {
        mantissa = (mantissa * mantissa) >> 31;
        let digit = mantissa >> 32;
        mantissa >>= digit;
        digits = digits << 1 | digit as u32;
        i += 1;
    }
    digits
}

/// log2(1024 / freq) in units of 2^-16 bit.
pub(super) fn of_freq(freq: u16) -> u32 {
    COSTS[usize::from(freq).min(TABLE_LEN)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_logarithms() {
        for freq in 1..=1024u16 {
            let exact = libm::log2(1024.0 / f64::from(freq)) * 65536.0;
            let found = f64::from(of_freq(freq));
            assert!(found >= exact - 1e-6 && found < exact + 1.01, "{freq}: {found} {exact}");
        }
        assert_eq!((of_freq(1), of_freq(512), of_freq(1024)), (10 << 16, 1 << 16, 0));
        assert!(of_freq(super::super::MAX_FREQ) >= 1 << 11 && of_freq(super::super::MAX_FREQ + 1) < 1 << 11);
    }
}
