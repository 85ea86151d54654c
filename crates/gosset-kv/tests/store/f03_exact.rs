//! F03: sinks and window are exact at all times, and one token does not spoil another.

use gosset_kv::{ExactType, Held, KvCodec, Place, Policy, Role};

use crate::dense::{SHAPE, Setup, Tokens, WIDTH, feed, policy, rounded};

const WINDOW: usize = 8;
const SINKS: usize = 3;

/// Compares everything that the store holds with what it should hold after `len` positions.
fn read_back(store: &gosset_kv::KvStore, tokens: &Tokens, len: usize, policy: Policy) {
    for layer in 0..SHAPE.layers {
        assert_eq!(store.len(layer), len);
        for role in [Role::Key, Role::Value] {
            for position in 0..len {
                let held = store.held(layer, role, position).unwrap();
                let in_window = position + policy.window >= len;
                match held {
                    Held::Kept => assert!(position < policy.sinks),
                    Held::Recent => assert!(position >= policy.sinks && in_window),
                    Held::Open | Held::Sealed => assert!(position >= policy.sinks && !in_window),
                }
                let x = if role == Role::Key { &tokens.keys } else { &tokens.values };
                let row = &x[position * WIDTH..(position + 1) * WIDTH];
                let exact = store.exact_vectors(layer, role, position).unwrap();
                let expected = (position < policy.sinks || in_window).then(|| rounded(policy.exact, row));
                assert_eq!(exact, expected, "position {position} of {len}");
            }
            assert!(store.held(layer, role, len).is_err());
        }
    }
}

#[test]
fn f03_sinks_and_window_are_bit_exact_after_every_step() {
    for exact in [ExactType::F32, ExactType::F16, ExactType::Bf16] {
        let policy = Policy { exact, ..policy(SINKS, WINDOW, 8) };
        let setup = Setup::new(policy);
        for prompt in [1, WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW] {
            let mut tokens = Tokens::new(prompt + 3 * WINDOW, prompt as u64);
            tokens.keys[..WIDTH].iter_mut().for_each(|x| *x *= 1000.0);
            let mut store = setup.store();
            feed(&mut store, &setup, &tokens, 0, prompt);
            read_back(&store, &tokens, prompt, policy);
            for at in prompt..tokens.len() {
                feed(&mut store, &setup, &tokens, at, 1);
                read_back(&store, &tokens, at + 1, policy);
            }
        }
    }
}

#[test]
fn f03_an_extreme_first_token_leaves_the_others_as_they_were() {
    for (sinks, window) in [(SINKS, WINDOW), (0, 0), (0, WINDOW)] {
        let setup = Setup::new(policy(sinks, window, 8));
        for prompt in [1, WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW] {
            let plain = Tokens::new(prompt + 20, 7);
            let mut extreme = plain.clone();
            extreme.keys[..WIDTH].iter_mut().for_each(|x| *x *= 1000.0);
            let rows = [&plain, &extreme].map(|tokens| {
                let mut store = setup.store();
                feed(&mut store, &setup, tokens, 0, prompt);
                for at in prompt..tokens.len() {
                    feed(&mut store, &setup, tokens, at, 1);
                }
                coded_rows(&store, setup.codec())
            });
            for (position, (a, b)) in rows[0].iter().zip(&rows[1]).enumerate().skip(1) {
                assert_eq!(a, b, "position {position}");
            }
        }
    }
}

/// Rows of layer 0 per position, all heads, both roles; empty where a position is exact.
fn coded_rows(store: &gosset_kv::KvStore, codec: impl KvCodec) -> Vec<Vec<u8>> {
    let mut of_position = vec![Vec::new(); store.len(0)];
    for role in [Role::Key, Role::Value] {
        for head in 0..SHAPE.kv_heads {
            for (index, page) in store.pages(0, role).unwrap().iter().enumerate() {
                let mut rows = vec![0; page.packed * codec.row_bytes()];
                let place = Place { layer: 0, role, head: head as u32 };
                codec.unpack(place, &store.page_bytes(0, role, index, head).unwrap(), &mut rows).unwrap();
                for (position, row) in page.positions.clone().zip(rows.chunks_exact(codec.row_bytes())) {
                    of_position[position].extend_from_slice(row);
                }
            }
            let (positions, rows) = store.open_rows(0, role, head).unwrap();
            for (position, row) in positions.zip(rows.chunks_exact(codec.row_bytes())) {
                of_position[position].extend_from_slice(row);
            }
        }
    }
    of_position
}
