//! What a container is forecast to take against what it takes.
#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use gosset_codec::{CodecSpec, MatRef, calibrate};
use gosset_container::{ContainerKind, Forecast, ManifestInfo, PlaneForecast, Writer};
use serde_json::json;

/// Bytes that a forecast may be too high: alignment and padding of the header, and the digits of the offsets of a small file.
const FRAME_SLACK: u64 = 128;

#[test]
fn forecasts_are_never_too_low_and_hardly_too_high() {
    let dir = tempfile::tempdir().unwrap();
    for (codec, n) in [("e8-rice@3", 1), ("a2-rice@2.5", 40), ("z-rice@1.2", 7)] {
        let path = dir.path().join("f.gosset");
        let info = ManifestInfo {
            kind: ContainerKind::Tensors,
            source: json!({ "kind": "a \"quoted\" one" }),
            recipe: json!({ "codec": codec, "list": [1, 2.5, null] }),
        };
        let mut writer = Writer::create(&path, true).unwrap();
        let mut sum = Forecast::default();
        let mut add = |f: Forecast| {
            sum.header_bytes += f.header_bytes;
            sum.plane_bytes += f.plane_bytes;
            sum.n_planes += f.n_planes;
        };
        // Offsets of six digits.
        let max_bytes = 999_999;
        for i in 0..n {
            let (rows, cols) = (8 + i, 172);
            let x = calibrate::gaussian(rows * cols, i as u64);
            let m =
                CodecSpec::parse(codec).unwrap().check().unwrap().encode(MatRef::new(&x, rows, cols).unwrap()).unwrap();
            let name = format!("layers.{i}.\"quoted\" #{i}@é");
            writer.add_matrix(&name, &m, "BF16").unwrap();
            let planes: Vec<_> = m
                .planes
                .iter()
                .map(|p| PlaneForecast { name: &p.name, dtype: p.data.dtype(), len: p.data.len() as u64 })
                .collect();
            add(Forecast::coded(&name, "BF16", &m.header, &planes, max_bytes));
        }
        writer.add_raw("norm", "F32", &[3], &[0; 12], "norm").unwrap();
        add(Forecast::raw("norm", "F32", &[3], 12, "norm", max_bytes));
        writer.add_raw("odd", "Q8_0", &[1, 32], &[7; 34], "embeddings").unwrap();
        add(Forecast::raw("odd", "Q8_0", &[1, 32], 34, "embeddings", max_bytes));
        writer.add_blob("config.json", b"{}").unwrap();
        add(Forecast::blob("config.json", 2, max_bytes));

        let header = Forecast::frame(&info).unwrap() + sum.header_bytes;
        let expected = writer.header_bytes(&info).unwrap();
        let summary = writer.finish(info).unwrap();
        assert_eq!(summary.header_bytes, expected);
        assert_eq!(summary.n_planes as u64, sum.n_planes);
        assert_eq!(summary.file_bytes - summary.header_bytes, sum.plane_bytes);
        let slack = FRAME_SLACK + 6 * 2 * sum.n_planes;
        assert!(header >= expected && header - expected <= slack, "{codec}: {header} forecast, {expected} taken");
        eprintln!("{codec}: {header} forecast, {expected} taken, {} planes", sum.n_planes);
    }
}
