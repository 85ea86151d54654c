//! Nearest codeword of a small codebook.

/// Codewords per leaf.
const LEAF: usize = 8;

/// Box distances are sums of squares updated one axis at a time; a far side is entered unless it is farther by more than what
/// that rounding can hide (a few ulp of f32), so that the search stays exact.
const SLACK: f32 = 1.0 - 1e-4;

/// A k-d tree over codewords: the nearest one by squared distance in f32, the lowest index among equals.
#[derive(Debug, Clone)]
pub(crate) struct CodeTree<const P: usize> {
    /// Codewords, those of a leaf side by side, each with its index in the codebook.
    points: Vec<([f32; P], u16)>,
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Copy)]
enum Node {
    /// Codewords `from..to`.
    Leaf { from: u32, to: u32 },
    /// Coordinates `<= split` along `axis` are in the node that follows, those `>= split` in node `right`.
    Split { axis: u8, split: f32, right: u32 },
}

impl<const P: usize> CodeTree<P> {
    /// The tree of a codebook of 1 to 65536 codewords.
    pub(crate) fn new(codebook: &[[f32; P]]) -> Self {
        assert!((1..=1 << 16).contains(&codebook.len()), "codebooks have 1 to 65536 codewords");
        let mut points: Vec<_> = codebook.iter().enumerate().map(|(i, &c)| (c, i as u16)).collect();
        let mut nodes = Vec::new();
        let n = points.len();
        grow(&mut points, 0, n, &mut nodes);
        CodeTree { points, nodes }
    }

    /// Index of the codeword nearest to `x`, and its squared distance. The values of `x` are finite.
    pub(crate) fn nearest(&self, x: &[f32; P]) -> (u16, f32) {
        let mut best = Best { index: u16::MAX, distance: f32::INFINITY };
        self.visit(0, x, 0.0, &mut [0.0; P], &mut best);
        (best.index, best.distance)
    }

    /// `box_distance` is the squared distance from `x` to the box of `node`, `offset` its parts.
    fn visit(&self, node: usize, x: &[f32; P], box_distance: f32, offset: &mut [f32; P], best: &mut Best) {
        match self.nodes[node] {
            Node::Leaf { from, to } => {
                for (point, index) in &self.points[from as usize..to as usize] {
                    best.offer(*index, squared_distance(x, point));
                }
            }
            Node::Split { axis, split, right } => {
                let axis = usize::from(axis);
                let to_split = x[axis] - split;
                let (near, far) = if to_split < 0.0 { (node + 1, right as usize) } else { (right as usize, node + 1) };
                self.visit(near, x, box_distance, offset, best);
                let before = offset[axis];
                let far_distance = box_distance - before * before + to_split * to_split;
                if far_distance * SLACK <= best.distance {
                    offset[axis] = to_split;
                    self.visit(far, x, far_distance, offset, best);
                    offset[axis] = before;
                }
            }
        }
    }
}

struct Best {
    index: u16,
    distance: f32,
}

impl Best {
    fn offer(&mut self, index: u16, distance: f32) {
        if distance < self.distance || (distance == self.distance && index < self.index) {
            *self = Best { index, distance };
        }
    }
}

/// Sum of squared differences, in order of the coordinates.
pub(crate) fn squared_distance<const P: usize>(x: &[f32; P], c: &[f32; P]) -> f32 {
    x.iter().zip(c).fold(0.0, |sum, (x, c)| sum + (x - c) * (x - c))
}

/// Cuts `points[from..to]` in halves across the axis of largest spread until leaves are left; the nodes are in preorder.
fn grow<const P: usize>(points: &mut [([f32; P], u16)], from: usize, to: usize, nodes: &mut Vec<Node>) {
    let here = &mut points[from..to];
    if here.len() <= LEAF {
        nodes.push(Node::Leaf { from: from as u32, to: to as u32 });
        return;
    }
    let spread = |axis: usize| {
        let values = || here.iter().map(|p| p.0[axis]);
        values().fold(f32::NEG_INFINITY, f32::max) - values().fold(f32::INFINITY, f32::min)
    };
    let axis = (0..P).max_by(|&a, &b| spread(a).total_cmp(&spread(b))).unwrap_or(0);
    let half = here.len() / 2;
    here.select_nth_unstable_by(half, |a, b| a.0[axis].total_cmp(&b.0[axis]).then(a.1.cmp(&b.1)));
    let split = here[half].0[axis];
    let node = nodes.len();
    nodes.push(Node::Leaf { from: 0, to: 0 });
    grow(points, from, from + half, nodes);
    let right = nodes.len() as u32;
    nodes[node] = Node::Split { axis: axis as u8, split, right };
    grow(points, from + half, to, nodes);
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng};

    use super::*;

    fn exhaustive<const P: usize>(codebook: &[[f32; P]], x: &[f32; P]) -> (u16, f32) {
        let mut best = (0, f32::INFINITY);
        for (i, c) in codebook.iter().enumerate() {
            let d = squared_distance(x, c);
            if d < best.1 {
                best = (i as u16, d);
            }
        }
        best
    }

    fn holds<const P: usize>(n: usize, rng: &mut StdRng) {
        // Coordinates on a coarse raster make ties; the rest is in general position.
        let mut point = |coarse: bool| -> [f32; P] {
            std::array::from_fn(|_| {
                let v: f32 = rng.random_range(-3.0..3.0);
                if coarse { (v * 2.0).round() / 2.0 } else { v }
            })
        };
        for coarse in [false, true] {
            let codebook: Vec<[f32; P]> = (0..n).map(|_| point(coarse)).collect();
            let tree = CodeTree::new(&codebook);
            for _ in 0..500 {
                let x = point(coarse).map(|v| v * 1.4);
                assert_eq!(tree.nearest(&x), exhaustive(&codebook, &x), "P {P}, n {n}, coarse {coarse}, x {x:?}");
            }
            for c in &codebook {
                assert_eq!(tree.nearest(c), exhaustive(&codebook, c));
            }
        }
    }

    #[test]
    fn the_tree_finds_what_an_exhaustive_search_finds() {
        let mut rng = StdRng::seed_from_u64(5);
        for n in [1, 2, 8, 9, 64, 300] {
            holds::<1>(n, &mut rng);
            holds::<2>(n, &mut rng);
            holds::<4>(n, &mut rng);
        }
    }
}
