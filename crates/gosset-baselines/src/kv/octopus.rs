//! OCTOPUS: directions of triplets on an octahedron.

use half::f16;

use super::bits::{BitSink, BitSource};
use super::fixed::{FixedRate, Layout, half};
use super::levels::{Levels, coordinate, octahedral, triplet_norm};
use super::rotation::Rotation;
use super::turboquant::normalize;

/// Bits of the parts of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// Each of the two coordinates of the square that a direction is mapped to.
    pub(crate) direction: u32,
    /// The norm of a triplet.
    pub(crate) norm: u32,
    /// A coordinate that belongs to no triplet.
    pub(crate) rest: u32,
}

impl Split {
    /// One bit more for directions, one less for norms: of all splits of 3b + 1 bits the one of least squared error, which a test shows.
    pub(crate) fn of(bits: u32) -> Self {
        Self { direction: bits + 1, norm: bits - 1, rest: bits }
    }
}

/// Random signs and a Hadamard matrix, the norm as fp16, and the direction in triplets: the octahedral map takes the direction of a
/// triplet to a square, whose coordinates and the norm of the triplet are rounded to the best levels of their distributions.
///
/// The published b bits spend b + 1, b + 1 and b - 1 bits on a triplet: b + 1/3 per coordinate (`octopus@2` is 2.33 bits and norms).
/// Coordinates are rounded one by one, which gives the published errors; `joint` looks at the neighbours of the cell as well and
/// takes the direction and then the norm nearest to the triplet, at the same bits. The one or two coordinates that are left over
/// where 3 does not divide the width are rounded to b bits as in TurboQuant; the paper does not say how it treats them.
///
/// Source: Boss, Voleti, Donné, Vainer, *OCTOPUS: optimized KV cache for transformers via octahedral parametrization under optimal
/// squared error quantization*, arXiv 2605.21226.
#[derive(Debug)]
pub(crate) struct Octopus {
    name: String,
    split: Split,
    joint: bool,
    square: Levels,
    norms: Levels,
    rest: Levels,
    /// Unit vectors of all cells of the square, first coordinate slowest.
    directions: Vec<[f32; 3]>,
    rotation: Rotation,
    head_dim: usize,
}

impl Octopus {
    pub(crate) fn new(head_dim: usize, bits: u32, joint: bool, seed: u64, stream: u64) -> Self {
        let name = format!("octopus{}@{bits}", if joint { "-joint" } else { "" });
        Self::with_split(name, head_dim, Split::of(bits), joint, seed, stream)
    }

    pub(crate) fn with_split(name: String, head_dim: usize, split: Split, joint: bool, seed: u64, stream: u64) -> Self {
        let square = octahedral(split.direction);
        let directions =
            square.all().iter().flat_map(|&u| square.all().iter().map(move |&v| direction(u, v))).collect();
        Self {
            name,
            split,
            joint,
            square,
            norms: triplet_norm(split.norm, head_dim),
            rest: coordinate(split.rest, head_dim),
            directions,
            rotation: Rotation::hadamard(seed, stream, head_dim),
            head_dim,
        }
    }

    fn cell(&self, u: u32, v: u32) -> [f32; 3] {
        self.directions[((u << self.split.direction) | v) as usize]
    }

    /// Codes of the two coordinates of the square, and the norm to be rounded.
    fn encode_triplet(&self, triplet: [f32; 3]) -> ([u32; 2], f32) {
        let [u, v] = square(triplet).map(|c| self.square.nearest(c));
        if !self.joint {
            return ([u, v], dot(triplet, triplet).sqrt());
        }
        let last = (1 << self.split.direction) - 1;
        let near = |c: u32| c.saturating_sub(1)..=(c + 1).min(last);
        let (mut best, mut along) = ([u, v], dot(triplet, self.cell(u, v)));
        for (u, v) in near(u).flat_map(|u| near(v).map(move |v| (u, v))) {
            let candidate = dot(triplet, self.cell(u, v));
            if candidate > along {
                (best, along) = ([u, v], candidate);
            }
        }
        (best, along)
    }
}

fn dot(a: [f32; 3], b: [f32; 3]) -> f32 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn sign(v: f32) -> f32 {
    if v < 0.0 { -1.0 } else { 1.0 }
}

/// What is left of `a` on the other side of an edge of the square, on the side of `b`.
fn fold(a: f32, b: f32) -> f32 {
    (1.0 - a.abs()) * sign(b)
}

/// The octahedral map: the point of a direction in the square [-1, 1]²; the upper half of the octahedron |x| + |y| + |z| = 1 is seen
/// from above, the lower half folded outwards. The origin goes to the centre.
///
/// Source: Meyer, Süßmuth, Sußner, Stamminger, Greiner, *On floating-point normal vectors*, 2010.
fn square([x, y, z]: [f32; 3]) -> [f32; 2] {
    let sum = x.abs() + y.abs() + z.abs();
    if sum == 0.0 {
        return [0.0; 2];
    }
    let (x, y) = (x / sum, y / sum);
    if z < 0.0 { [fold(y, x), fold(x, y)] } else { [x, y] }
}

/// The unit vector of a point of the square.
fn direction(u: f32, v: f32) -> [f32; 3] {
    let z = 1.0 - u.abs() - v.abs();
    let [x, y] = if z < 0.0 { [fold(v, u), fold(u, v)] } else { [u, v] };
    let length = dot([x, y, z], [x, y, z]).sqrt();
    [x / length, y / length, z / length]
}

impl FixedRate for Octopus {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn head_dim(&self) -> usize {
        self.head_dim
    }

    fn layout(&self) -> Layout {
        let Split { direction, norm, rest } = self.split;
        let (triplets, left) = (self.head_dim / 3, self.head_dim % 3);
        Layout { n_scales: 1, code_bits: triplets * (2 * direction + norm) as usize + left * rest as usize }
    }

    fn encode(&self, x: &mut [f32], scales: &mut [f16], codes: &mut BitSink<'_>) {
        scales[0] = half(normalize(x));
        self.rotation.forward(x);
        let (triplets, rest) = x.as_chunks::<3>();
        for &triplet in triplets {
            let (direction, norm) = self.encode_triplet(triplet);
            direction.iter().for_each(|&code| codes.put(code, self.split.direction));
            codes.put(self.norms.nearest(norm), self.split.norm);
        }
        rest.iter().for_each(|&z| codes.put(self.rest.nearest(z), self.split.rest));
    }

    fn decode(&self, scales: &[f16], codes: &mut BitSource<'_>, out: &mut [f32]) {
        let norm = scales[0].to_f32();
        let (triplets, rest) = out.as_chunks_mut::<3>();
        for triplet in triplets {
            let (u, v) = (codes.take(self.split.direction), codes.take(self.split.direction));
            let length = norm * self.norms.level(codes.take(self.split.norm));
            *triplet = self.cell(u, v).map(|c| length * c);
        }
        rest.iter_mut().for_each(|z| *z = norm * self.rest.level(codes.take(self.split.rest)));
    }

    fn enter_frame(&self, x: &mut [f32]) {
        self.rotation.forward(x);
    }

    fn leave_frame(&self, x: &mut [f32]) {
        self.rotation.inverse(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_octahedral_map_is_one_to_one() {
        for i in 0..41 {
            for j in 0..41 {
                let (u, v) = ((i as f32 - 20.0) / 20.5, (j as f32 - 20.0) / 20.5);
                let there = direction(u, v);
                assert!((dot(there, there) - 1.0).abs() < 1e-6);
                let [a, b] = square(there.map(|c| 3.5 * c));
                assert!((a - u).abs() < 1e-5 && (b - v).abs() < 1e-5, "{u} {v}: {a} {b}");
            }
        }
        assert_eq!(square([0.0; 3]), [0.0; 2]);
    }
}
