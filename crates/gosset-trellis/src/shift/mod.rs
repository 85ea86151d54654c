//! The fixed-rate bit-shift trellis.
