//! Fields of up to 16 bits in bytes, lowest bits first.

/// Writes fields one after the other into bytes that are zero.
#[derive(Debug)]
pub(crate) struct BitSink<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> BitSink<'a> {
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Appends `value`, which is below `2^bits`.
    ///
    /// # Panics
    ///
    /// If the bytes are full.
    pub(crate) fn put(&mut self, value: u32, bits: u32) {
        debug_assert!(bits <= 16 && value >> bits == 0);
        let mut held = value << (self.at % 8);
        let mut byte = self.at / 8;
        while held != 0 {
            self.bytes[byte] |= held as u8;
            held >>= 8;
            byte += 1;
        }
        self.at += bits as usize;
    }
}

/// Reads fields one after the other.
#[derive(Debug)]
pub(crate) struct BitSource<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitSource<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `bits` bits; bits behind the end are zeros.
    pub(crate) fn take(&mut self, bits: u32) -> u32 {
        debug_assert!(bits <= 16);
        let first = self.at / 8;
        let byte = |i: usize| self.bytes.get(first + i).map_or(0, |&b| u32::from(b) << (8 * i));
        let held = (byte(0) | byte(1) | byte(2)) >> (self.at % 8);
        self.at += bits as usize;
        held & ((1 << bits) - 1)
    }
}

/// Appends the first `bits` bits of `from`.
pub(crate) fn copy(sink: &mut BitSink<'_>, source: &mut BitSource<'_>, mut bits: usize) {
    while bits > 0 {
        let some = bits.min(16) as u32;
        sink.put(source.take(some), some);
        bits -= some as usize;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fields_come_back(fields in prop::collection::vec((any::<u32>(), 0u32..=16), 0..50)) {
            let fields: Vec<(u32, u32)> = fields.into_iter().map(|(v, bits)| (v & ((1 << bits) - 1), bits)).collect();
            let n: usize = fields.iter().map(|f| f.1 as usize).sum();
            let mut bytes = vec![0; n.div_ceil(8)];
            let mut sink = BitSink::new(&mut bytes);
            fields.iter().for_each(|&(value, bits)| sink.put(value, bits));
            let mut source = BitSource::new(&bytes);
            for &(value, bits) in &fields {
                prop_assert_eq!(source.take(bits), value);
            }
            let mut again = vec![0; n.div_ceil(8)];
            copy(&mut BitSink::new(&mut again), &mut BitSource::new(&bytes), n);
            prop_assert_eq!(again, bytes);
        }
    }
}
