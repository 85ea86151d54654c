//! Lines of a plot: their points and how they look.

use plotters::style::RGBColor;

/// One codec's points, by ascending rate.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) look: Look,
}

/// Colour says the family, marker and dashes the member.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Look {
    pub(super) color: RGBColor,
    pub(super) marker: Marker,
    pub(super) dashed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    Dot,
    Ring,
    Square,
    Triangle,
    Cross,
}

const MARKERS: [Marker; 5] = [Marker::Dot, Marker::Square, Marker::Triangle, Marker::Ring, Marker::Cross];

/// Families by the start of their names, with their shades from the best member on. The first family that fits counts; a name
/// that fits none is a baseline.
const FAMILIES: [(&str, &[RGBColor]); 4] = [
    ("trellis", &[RGBColor(0, 120, 60), RGBColor(60, 170, 90), RGBColor(140, 200, 120)]),
    ("shift", &[RGBColor(170, 40, 20), RGBColor(220, 90, 30), RGBColor(240, 150, 50), RGBColor(200, 120, 100)]),
    ("rice", &[RGBColor(90, 110, 140), RGBColor(120, 140, 165), RGBColor(150, 165, 190), RGBColor(180, 190, 205)]),
    ("lattice", &[RGBColor(20, 50, 150), RGBColor(50, 100, 200), RGBColor(90, 150, 230), RGBColor(140, 190, 240)]),
];

const BASELINES: &[RGBColor] = &[
    RGBColor(110, 40, 130),
    RGBColor(160, 80, 170),
    RGBColor(200, 130, 200),
    RGBColor(120, 90, 40),
    RGBColor(160, 130, 60),
    RGBColor(60, 60, 60),
    RGBColor(110, 110, 110),
    RGBColor(150, 150, 150),
];

impl Series {
    /// One series per codec, families together, in the order in which they first appear.
    pub(super) fn group<'a>(points: impl Iterator<Item = (&'a str, f64, f64)>) -> Vec<Series> {
        let mut named: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
        for (name, x, y) in points {
            match named.iter_mut().find(|(known, _)| *known == name) {
                Some((_, points)) => points.push((x, y)),
                None => named.push((name, vec![(x, y)])),
            }
        }
        // A stable sort: within a family the order of the table stays.
        named.sort_by_key(|(name, _)| family(name));
        let mut members = [0; FAMILIES.len() + 1];
        let series = named.into_iter().map(|(name, mut points)| {
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let family = family(name);
            let member = members[family];
            members[family] += 1;
            let (shades, dashed) = match FAMILIES.get(family) {
                Some((name, shades)) => (*shades, *name == "rice"),
                None => (BASELINES, true),
            };
            let look = Look { color: shades[member % shades.len()], marker: MARKERS[member % MARKERS.len()], dashed };
            Series { name: name.to_owned(), points, look }
        });
        series.collect()
    }
}

/// Index of a codec's family.
fn family(name: &str) -> usize {
    let key = if name.ends_with("-rice") {
        "rice"
    } else if ["e8", "d4", "a2", "z"].contains(&name) {
        "lattice"
    } else {
        name
    };
    FAMILIES.iter().position(|(start, _)| key.starts_with(start)).unwrap_or(FAMILIES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_grouped_by_codec_and_sorted_by_rate() {
        let points = [("nf4", 4.2, 0.5), ("e8", 3.0, 0.2), ("e8", 2.0, 0.1), ("trellis-8", 2.0, 0.1)];
        let series = Series::group(points.into_iter());
        let names: Vec<&str> = series.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["trellis-8", "e8", "nf4"]);
        assert_eq!(series[1].points, [(2.0, 0.1), (3.0, 0.2)]);
    }

    #[test]
    fn no_two_series_look_alike() {
        let mut names = ["e8", "d4", "a2", "z"].map(str::to_owned).to_vec();
        names.extend(["e8-rice", "d4-rice", "a2-rice", "z-rice", "shiftlut-17"].map(str::to_owned));
        names.extend((12..=18).map(|bits| format!("shift-{bits}")));
        names.extend(["trellis-8", "trellis-64", "trellis-256"].map(str::to_owned));
        names.extend(
            ["rtn", "gptq", "nf4", "higgs1", "higgs2", "higgs4", "e8p", "e8p-rtn", "q2_k", "q3_k", "q4_k"]
                .map(str::to_owned),
        );
        let series = Series::group(names.iter().map(|name| (name.as_str(), 1.0, 1.0)));
        for (i, a) in series.iter().enumerate() {
            assert!(series[..i].iter().all(|b| a.look != b.look), "{}", a.name);
        }
    }
}
