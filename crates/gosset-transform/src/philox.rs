//! Philox4x32-10 and the random streams cut from it.
//!
//! A counter-based generator has no state to carry: word `i` of any stream is a pure function of its address, so
//! threads, machines and GPU lanes agree without talking to each other.

/// Multipliers of the two 32 x 32 -> 64 bit products of a round (Salmon et al. 2011).
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];

/// Weyl increments of the key: the fractional parts of the golden ratio and of sqrt(3), times 2^32.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

const ROUNDS: usize = 10;

/// Four random words for a 128-bit counter under a 64-bit key: the Philox4x32 bijection with ten rounds.
///
/// For a fixed key this is a permutation of the counters. It passes the statistical batteries that matter for signs
/// and dither; it is not a cipher.
///
/// Source: Salmon, Moraes, Dror, Shaw, *Parallel random numbers: as easy as 1, 2, 3*, SC 2011.
///
/// ```
/// // The first known-answer vector published with Random123.
/// let words = gosset_transform::philox4x32_10([0; 4], [0; 2]);
/// assert_eq!(words, [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
/// ```
#[must_use]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(WEYL[0]);
        k1 = k1.wrapping_add(WEYL[1]);
    }
    [c0, c1, c2, c3]
}

/// What a random stream is for. Streams of different domains never share a counter.
///
/// The discriminants are part of every stored format and never change.
///
/// ```
/// use gosset_transform::Domain;
///
/// assert_eq!(Domain::Signs as u32, 0);
/// assert_eq!(Domain::Dither as u32, 1);
/// assert_eq!(Domain::Rotation as u32, 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
pub enum Domain {
    /// The ±1 diagonal of the randomized Hadamard transform ([`Signs`](crate::Signs), stream index 0).
    Signs = 0,
    /// Dither points of a lattice cell.
    Dither = 1,
    /// Gaussian entries from which dense random rotations are made.
    Rotation = 2,
}

/// A stream of random 32-bit words, addressed by (seed, domain, index).
///
/// Word `i` is, bit for bit,
///
/// ```text
/// block   = (i / 4) mod 2^32
/// key     = [seed mod 2^32, seed / 2^32]
/// counter = [block, index mod 2^32, index / 2^32, domain]
/// word i  = philox4x32_10(counter, key)[i mod 4]
/// ```
///
/// so a stream holds 2^34 words and then repeats. Two streams whose seed, domain or index differ have no counter in
/// common. Cloning a stream clones its place in it.
///
/// ```
/// use gosset_transform::{Domain, RandomStream};
///
/// let mut stream = RandomStream::new(0, Domain::Signs, 0);
/// assert_eq!(stream.word(3), 0x9b00dbd8); // Any word, in any order;
/// assert_eq!(stream.next_u32(), 0x6627e8d5); // or one after the other, from word 0.
/// assert_eq!(stream.next_u32(), 0xe169c58d);
/// ```
#[derive(Clone, Debug)]
pub struct RandomStream {
    key: [u32; 2],
    index: [u32; 2],
    domain: u32,
    /// The word that `next_u32` returns next.
    place: u64,
    /// The block that holds `place`, valid unless `place` starts a block.
    block: [u32; 4],
}

impl RandomStream {
    /// The stream of `domain` with number `index` under `seed`, placed before its word 0.
    ///
    /// ```
    /// use gosset_transform::{Domain, RandomStream, philox4x32_10};
    ///
    /// let stream = RandomStream::new(0x0123_4567_89ab_cdef, Domain::Dither, (7 << 32) | 5);
    /// let words = philox4x32_10([2, 5, 7, 1], [0x89ab_cdef, 0x0123_4567]);
    /// assert_eq!(stream.word(9), words[1]);
    /// ```
    #[must_use]
    pub fn new(seed: u64, domain: Domain, index: u64) -> Self {
        Self { key: halves(seed), index: halves(index), domain: domain as u32, place: 0, block: [0; 4] }
    }

    /// Word `i` of the stream; does not move the place of [`next_u32`](Self::next_u32).
    ///
    /// ```
    /// use gosset_transform::{Domain, RandomStream};
    ///
    /// assert_eq!(RandomStream::new(1, Domain::Signs, 0).word(0), 0xe3e80670);
    /// ```
    #[must_use]
    pub fn word(&self, i: u64) -> u32 {
        self.block_of(i)[(i % 4) as usize]
    }

    /// The next word: word 0 first, then word 1, and so on.
    ///
    /// Costs one Philox evaluation every four words, where [`word`](Self::word) costs one each.
    ///
    /// ```
    /// use gosset_transform::{Domain, RandomStream};
    ///
    /// let mut stream = RandomStream::new(0, Domain::Signs, 0);
    /// assert_eq!([stream.next_u32(), stream.next_u32()], [0x6627e8d5, 0xe169c58d]);
    /// ```
    pub fn next_u32(&mut self) -> u32 {
        if self.place.is_multiple_of(4) {
            self.block = self.block_of(self.place);
        }
        let word = self.block[(self.place % 4) as usize];
        self.place = self.place.wrapping_add(1);
        word
    }

    fn block_of(&self, i: u64) -> [u32; 4] {
        philox4x32_10([(i / 4) as u32, self.index[0], self.index[1], self.domain], self.key)
    }
}

fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_known_answers_hold() {
        // The three philox4x32-10 vectors of the Random123 distribution: zeros, ones, digits of pi.
        let vectors = [
            ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
            (
                [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
                [0xa4093822, 0x299f31d0],
                [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
            ),
        ];
        for (counter, key, words) in vectors {
            assert_eq!(philox4x32_10(counter, key), words, "counter {counter:08x?}, key {key:08x?}");
        }
    }

    #[test]
    fn sequential_and_random_access_agree() {
        let mut stream = RandomStream::new(u64::MAX - 5, Domain::Rotation, 1 << 40);
        for i in 0..37 {
            let word = stream.next_u32();
            assert_eq!(word, stream.word(i), "word {i}");
        }
    }

    #[test]
    fn a_stream_repeats_after_two_to_the_34_words() {
        let stream = RandomStream::new(3, Domain::Dither, 9);
        for i in [0, 1, 4, 7] {
            assert_eq!(stream.word(i), stream.word(i + (1 << 34)));
            assert_ne!(stream.word(i), stream.word(i + (1 << 33)));
        }
    }

    #[test]
    fn every_part_of_the_address_changes_the_stream() {
        let base = RandomStream::new(0, Domain::Signs, 0);
        let others = [
            RandomStream::new(1, Domain::Signs, 0),
            RandomStream::new(1 << 32, Domain::Signs, 0),
            RandomStream::new(0, Domain::Dither, 0),
            RandomStream::new(0, Domain::Signs, 1),
            RandomStream::new(0, Domain::Signs, 1 << 32),
        ];
        for other in others {
            // 64 words that agree by chance: once in 2^2048.
            assert!((0..64).any(|i| other.word(i) != base.word(i)), "{other:?}");
        }
    }
}
