//! Counter-based random streams, sign diagonals, fast Walsh-Hadamard transform and tiled randomized Hadamard transform.
