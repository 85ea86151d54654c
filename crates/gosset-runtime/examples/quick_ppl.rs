//! Perplexity of a checkpoint over a text, window by window: `quick_ppl MODEL TEXT WINDOW N_WINDOWS [BOS]`.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use gosset_runtime::{LanguageModel, LoadOptions, source::open_source};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let t = Instant::now();
    let model = if args[1].ends_with(".gosset") {
        let c = gosset_container::Container::open(args[1].as_ref()).unwrap();
        LanguageModel::from_container(c, &LoadOptions::default()).unwrap()
    } else {
        let source = open_source(args[1].as_ref()).unwrap();
        LanguageModel::from_source(&*source, &LoadOptions::default()).unwrap()
    };
    println!("loaded in {:?}, {:?} {:?}", t.elapsed(), model.resident(), model.stop_ids());
    let text = std::fs::read_to_string(&args[2]).unwrap();
    let mut tokens = model.tokenizer().unwrap().encode(&text).unwrap();
    println!("{} tokens: {:?}", tokens.len(), &tokens[..8]);
    let (window, n): (usize, usize) = (args[3].parse().unwrap(), args[4].parse().unwrap());
    let bos: Option<u32> = args.get(5).map(|b| b.parse().unwrap());
    if let Some(bos) = bos {
        tokens.insert(0, bos);
    }
    let (mut full, mut half) = ((0f64, 0usize), (0f64, 0usize));
    for (w, ids) in tokens.chunks_exact(window).take(n).enumerate() {
        let mut ids = ids.to_vec();
        if let Some(bos) = bos {
            ids[0] = bos;
        }
        let t = Instant::now();
        model
            .score(&ids, 0..window - 1, &mut |p, row| {
                let max = row.iter().fold(f32::MIN, |a, &b| a.max(b));
                let sum: f64 = row.iter().map(|&v| f64::from((v - max).exp())).sum();
                let nll = sum.ln() + f64::from(max) - f64::from(row[ids[p + 1] as usize]);
                full = (full.0 + nll, full.1 + 1);
                if p >= window / 2 {
                    half = (half.0 + nll, half.1 + 1);
                }
            })
            .unwrap();
        let ppl = |(s, n): (f64, usize)| (s / n as f64).exp();
        println!("{} full {:.5} half {:.5} n {} {} in {:?}", w + 1, ppl(full), ppl(half), full.1, half.1, t.elapsed());
    }
}
