//! Pages of compressed KV caches: the number of a codec, the number of vectors, then the page; and texts that ask for caches.

use std::sync::{Arc, LazyLock};

use gosset_baselines::{kv_baseline, kv_families};
use gosset_kv::{KvCodec, KvShape, KvSpec, Place, Probe, ProbeBuilder, Role, RopePairs, parse_policy};

/// Small, and no power of two.
const SHAPE: KvShape = KvShape { layers: 1, kv_heads: 1, head_dim: 24 };

/// Most vectors of a page.
const MAX_VECTORS: usize = 70;

/// One of every kind of page; what a build does not know is left out.
const SPECS: [&str; 24] = [
    "e8@2.25",
    "d4@3",
    "a2@4",
    "z@2.5",
    "e8@2.25,frame=none",
    "e8@3,frame=mean,dither=on",
    "d4@2,frame=none,norm=log8",
    "a2@3,frame=none,norm=f16",
    "z@5,frame=none",
    "z@8,frame=none,norm=f16",
    "e8@3,frame=none,coder=rice",
    "d4@3,frame=none,coder=rice,norm=log8",
    "a2@3,frame=none,coder=rice,norm=f16",
    "z@3,frame=none,coder=rice,rot=signs",
    "trellis-8@2.5",
    "trellis-64@3,norm=log8",
    "trellis-8@6,norm=f16",
    "f32",
    "f16",
    "bf16",
    "shift-10@2,frame=none",
    "shift-10@3",
    "shift-12@4,frame=mean",
    "shift-10@4,scale=on",
];

type Codec = (Arc<dyn KvCodec>, Place);

static CODECS: LazyLock<Vec<Codec>> = LazyLock::new(|| {
    let probe = probe();
    let ours = SPECS.iter().filter_map(|text| text.parse::<KvSpec>().ok()?.codecs(SHAPE, Some(&probe)).ok());
    let baselines = kv_families().iter().flat_map(|family| match family.rates {
        [] => vec![family.name.to_owned()],
        rates => rates.iter().map(|rate| format!("{}@{rate}", family.name)).collect(),
    });
    let baselines = baselines.filter_map(|text| kv_baseline(&text, SHAPE, 1)?.ok());
    ours.chain(baselines)
        .flat_map(|(keys, values)| [(keys, Role::Key), (values, Role::Value)])
        .map(|(codec, role)| (codec, Place { layer: 0, role, head: 0 }))
        .collect()
});

/// Values from integer arithmetic, roughly normal.
fn normals(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 52) as f32 / 2048.0 - 1.0
    };
    (0..n).map(|_| next() + next() + next()).collect()
}

fn probe() -> Probe {
    let d = SHAPE.head_dim;
    let mut builder = ProbeBuilder::new(SHAPE, RopePairs::Halves).expect("an even width");
    let mut keys = normals(256 * d, 3);
    keys.iter_mut().enumerate().for_each(|(i, v)| *v = *v / (1 + i % d) as f32 + 0.5);
    builder.add(0, &keys, &normals(256 * d, 4)).expect("finite vectors that fit");
    builder.finish().expect("as many tokens as a probe needs")
}

/// Number of codecs.
pub fn n_codecs() -> usize {
    CODECS.len()
}

/// The input that holds a page of `blocks` blocks of vectors under codec `index`.
pub fn page_of(index: usize, blocks: usize) -> Vec<u8> {
    let (codec, place) = &CODECS[index];
    let n = blocks * codec.block();
    let mut rows = vec![0; n * codec.row_bytes()];
    codec.quantize(*place, 0, &normals(n * codec.head_dim(), 7), &mut rows).expect("finite vectors");
    let mut input = vec![index as u8, blocks as u8];
    codec.pack(*place, &rows, &mut input).expect("whole rows");
    input
}

pub(crate) fn pages(data: &[u8]) {
    let [index, blocks, page @ ..] = data else { return };
    let (codec, place) = &CODECS[usize::from(*index) % CODECS.len()];
    let n = usize::from(*blocks).min(MAX_VECTORS / codec.block()) * codec.block();
    let mut rows = vec![0; n * codec.row_bytes()];
    let unpacked = codec.unpack(*place, page, &mut rows);
    let mut vectors = vec![0f32; n * codec.head_dim()];
    let decoded = codec.decode(*place, 5, page, &mut Vec::new(), &mut vectors);
    assert_eq!(
        unpacked.is_ok(),
        decoded.is_ok(),
        "{}: a page is good for one way of reading and not for another",
        codec.name()
    );
    if unpacked.is_err() {
        return;
    }
    let mut again = vec![0f32; vectors.len()];
    codec.dequantize(*place, 5, &rows, &mut again).expect("rows of a good page");
    let same = vectors.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()));
    assert!(same, "{}: the two ways of reading a page differ", codec.name());
    // Rows that came out of a page go into one and come back.
    let mut packed = Vec::new();
    codec.pack(*place, &rows, &mut packed).expect("rows of a good page");
    let mut back = vec![0xff; rows.len()];
    codec.unpack(*place, &packed, &mut back).expect("a page that was just made");
    assert!(back == rows, "{}: rows do not come back from their page", codec.name());
}

pub(crate) fn spec(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    _ = parse_policy(text);
    let Ok(spec) = text.parse::<KvSpec>() else { return };
    let shown = spec.to_string();
    assert_eq!(shown.parse::<KvSpec>().ok(), Some(spec), "{shown:?} does not say what {text:?} says");
}
