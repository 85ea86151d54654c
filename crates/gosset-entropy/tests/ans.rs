//! Laws of the ANS coder.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which fail by panicking")]

use gosset_entropy::EntropyError;
use gosset_entropy::ans::{DecodeTable, EncodeTable, FreqTable, LANES, MAX_FREQ, StreamDecoder, StreamEncoder};
use proptest::prelude::*;

/// What a decoder asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    Symbol { lane: usize, table: u8, value: i32 },
    Raw { value: u32, n_bits: u32 },
}

fn encode(items: &[Item], tables: &[FreqTable<'_>]) -> Vec<u32> {
    let tables: Vec<_> = tables.iter().map(EncodeTable::new).collect();
    let mut encoder = StreamEncoder::new();
    for item in items {
        match *item {
            Item::Symbol { lane, table, value } => encoder.symbol(lane, table.into(), value),
            Item::Raw { value, n_bits } => encoder.raw(value, n_bits),
        }
    }
    let mut words = vec![7];
    let n_words = encoder.finish(&tables, &mut words).unwrap();
    assert_eq!((words.len(), words.remove(0)), (usize::from(n_words) + 1, 7));
    words
}

/// Decodes what has the shape of `items`.
fn decode(words: &[u32], items: &[Item], tables: &[FreqTable<'_>]) -> Result<Vec<Item>, EntropyError> {
    let tables: Vec<_> = tables.iter().map(DecodeTable::new).collect();
    let mut decoder = StreamDecoder::new(words)?;
    let decoded = items
        .iter()
        .map(|&item| {
            decoder.refill();
            match item {
                Item::Symbol { lane, table, .. } => {
                    Item::Symbol { lane, table, value: decoder.symbol(lane, &tables[usize::from(table)]) }
                }
                Item::Raw { n_bits, .. } => Item::Raw { value: decoder.raw(n_bits), n_bits },
            }
        })
        .collect();
    decoder.finish()?;
    Ok(decoded)
}

fn round_trips(items: &[Item], tables: &[FreqTable<'_>]) {
    let words = encode(items, tables);
    assert_eq!(decode(&words, items, tables).unwrap(), items);
    for n in 0..words.len() {
        assert!(decode(&words[..n], items, tables).is_err(), "{n} of {} words", words.len());
    }
    let longer = [&words[..], &[0]].concat();
    assert!(decode(&longer, items, tables).is_err());
}

/// Valid tables of every kind.
fn table() -> impl Strategy<Value = FreqTable<'static>> {
    (prop::collection::vec(1u32..400, 1..60), 1u32..40, 1i32..5, -40i32..10, 0u8..=16, any::<bool>()).prop_map(
        |(mut weights, escape, step, first, k, dominated)| {
            if dominated {
                weights[0] = 1_000_000;
            }
            weights.push(escape);
            let (n, sum) = (weights.len(), weights.iter().sum::<u32>());
            let share = |w: &u32| (u64::from(*w) * 1024 / u64::from(sum)).clamp(1, 1000) as u16;
            let mut freqs: Vec<u16> = weights.iter().map(share).collect();
            // What is missing or too much goes to the frequencies in turn.
            for i in (0..n).cycle() {
                match freqs.iter().sum::<u16>() {
                    1024 => break,
                    ..1024 if freqs[i] < MAX_FREQ => freqs[i] += 1,
                    1025.. if freqs[i] > 1 => freqs[i] -= 1,
                    _ => {}
                }
            }
            FreqTable::new(first, step, k, freqs).unwrap()
        },
    )
}

/// A number of steps: mostly small, at times anything that fits 32 bits.
fn steps() -> impl Strategy<Value = i32> {
    prop_oneof![12 => -8i32..40, 1 => -300i32..300, 1 => any::<i32>(), 1 => Just(i32::MAX), 1 => Just(i32::MIN)]
}

fn items_of(tables: &[FreqTable<'_>], raw: &[(u8, u8, i32, u32, u32)]) -> Vec<Item> {
    raw.iter()
        .map(|&(lane, table, steps, bits, n_bits)| {
            let table = table % tables.len() as u8;
            let of = &tables[usize::from(table)];
            if bits % 5 == 0 {
                let mask = ((1u64 << n_bits) - 1) as u32;
                return Item::Raw { value: bits & mask, n_bits };
            }
            let value = i64::from(of.first()) + i64::from(of.step()) * i64::from(steps);
            let clamped = value.clamp(i64::from(i32::MIN), i64::from(i32::MAX));
            // Back onto the grid, towards the run.
            let off = (clamped - i64::from(of.first())) % i64::from(of.step());
            Item::Symbol { lane: usize::from(lane) % LANES, table, value: (clamped - off) as i32 }
        })
        .collect()
}

fn raw_items(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(u8, u8, i32, u32, u32)>> {
    prop::collection::vec((any::<u8>(), any::<u8>(), steps(), any::<u32>(), 0u32..=32), len)
}

proptest! {
    #[test]
    fn decode_inverts_encode(tables in prop::collection::vec(table(), 1..5), raw in raw_items(0..200)) {
        round_trips(&items_of(&tables, &raw), &tables);
    }

    #[test]
    fn any_words_decode_or_fail(tables in prop::collection::vec(table(), 1..3), raw in raw_items(0..100), words in prop::collection::vec(prop_oneof![any::<u32>(), Just(0), Just(u32::MAX)], 0..60)) {
        let items = items_of(&tables, &raw);
        if let Ok(decoded) = decode(&words, &items, &tables) {
            prop_assert_eq!(encode(&decoded, &tables), words);
        }
    }

    #[test]
    fn flipped_bits_fail_or_differ(table in table(), raw in raw_items(1..150), at: prop::sample::Index) {
        let tables = [table];
        let items = items_of(&tables, &raw);
        let mut words = encode(&items, &tables);
        let bit = at.index(words.len() * 32);
        words[bit / 32] ^= 1 << (31 - bit % 32);
        if let Ok(decoded) = decode(&words, &items, &tables) {
            prop_assert_ne!(decoded, items);
        }
    }

    /// What the costs of the symbols add up to is what the words hold, but for the ends of the stream and a small loss.
    #[test]
    fn costs_predict_lengths(table in table(), draws in prop::collection::vec(0u16..1024, 4000)) {
        let mut items = Vec::new();
        let mut cost = 0;
        for (i, draw) in draws.iter().enumerate() {
            let mut symbol = 0;
            let mut below = table.freqs()[0];
            while below <= *draw {
                symbol += 1;
                below += table.freqs()[symbol];
            }
            let value = table.first() + table.step() * symbol as i32;
            cost += table.cost(value);
            items.push(Item::Symbol { lane: i % LANES, table: 0, value });
        }
        let found = encode(&items, &[table]).len() as f64 * 32.0;
        let expected = cost as f64 / 65536.0;
        prop_assert!(found >= expected - 40.0 && found <= expected * 1.004 + 80.0, "{found} {expected}");
    }

    #[test]
    fn mirrored_tables_code_negated_values(table in table(), n in -50i32..100) {
        let value = table.first() + table.step() * n;
        prop_assert_eq!(table.mirrored().cost(-value), table.cost(value));
        prop_assert_eq!(table.mirrored().mirrored(), table);
    }
}

#[test]
fn the_cheapest_symbols_take_a_bit_in_47() {
    for freqs in [&[1002, 22][..], &[1002, 21, 1], &[1001, 22, 1]] {
        let table = FreqTable::new(0, 1, 0, freqs).unwrap();
        let n = 40_000;
        let items: Vec<_> = (0..n).map(|i| Item::Symbol { lane: i % LANES, table: 0, value: 0 }).collect();
        let words = encode(&items, &[table]);
        assert!(words.len() * 32 * 47 >= n, "{} words", words.len());
        assert!((words.len() * 32) as f64 <= n as f64 / 29.0, "{} words", words.len());
    }
}

#[test]
fn empty_streams_hold_the_states_only() {
    let words = encode(&[], &[]);
    assert_eq!(words, [0, 0]);
    assert!(decode(&words, &[], &[]).is_ok());
    assert_eq!(decode(&[0, 1], &[], &[]), Err(EntropyError::StreamPadding { last_word: 1, padding_bits: 24 }));
    assert_eq!(decode(&[1 << 22, 0], &[], &[]), Err(EntropyError::FinalState { lane: 0, found: 1 }));
    assert_eq!(decode(&[0], &[], &[]), Err(EntropyError::StreamEnd { consumed: 40, len_bits: 32 }));
}

#[test]
fn bad_tables_are_refused() {
    let frequencies = |freqs: &'static [u16]| FreqTable::new(0, 1, 0, freqs).unwrap_err().to_string();
    for bad in [&[1024][..], &[1003, 21], &[512, 511], &[512, 512, 0], &[], &[65_535, 1]] {
        assert!(frequencies(bad).starts_with("frequency table: expected at least 2 frequencies"), "{bad:?}");
    }
    for (first, step, k) in [(0, 0, 0), (0, -1, 0), (-32_768, 1, 0), (32_768, 1, 0), (32_767, 1, 0), (0, 1, 17)] {
        let error = FreqTable::new(first, step, k, &[500, 500, 24][..]).unwrap_err();
        assert!(matches!(error, EntropyError::FrequencyRun { .. }), "{first} {step} {k}");
    }
}

#[test]
fn streams_beyond_16_bit_lengths_are_refused() {
    let tables = [EncodeTable::new(&FreqTable::new(0, 1, 0, &[1002, 22][..]).unwrap())];
    let mut encoder = StreamEncoder::new();
    (0..65_536).for_each(|_| encoder.raw(1, 32));
    let mut words = vec![3];
    assert_eq!(encoder.finish(&tables, &mut words), Err(EntropyError::StreamWords { n_words: 65_538, max: 65_535 }));
    assert_eq!(words, [3]);
    encoder.symbol(0, 0, 0);
    assert_eq!(encoder.finish(&tables, &mut words), Ok(2));
}
