//! Names of planes in the safetensors layer.
//!
//! A coded tensor `t` owns the planes `t#words`, `t#lengths`, …; a raw tensor is stored under its own name; side files are
//! `@blob/<name>`, planes of further sections `@section/<name>#<plane>`. So that no checkpoint can collide with these, `%`, `#`
//! and `@` in the names of tensors, side files and sections are written `%25`, `%23` and `%40`, and a tensor named
//! `__metadata__` becomes `%5F_metadata__`.

use std::borrow::Cow;

use crate::safetensors_header::METADATA;

/// Escapes the characters that the layer itself uses.
pub(crate) fn escape(name: &str) -> Cow<'_, str> {
    if name == METADATA {
        return Cow::Owned(name.replacen('_', "%5F", 1));
    }
    if !name.contains(['%', '#', '@']) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.replace('%', "%25").replace('#', "%23").replace('@', "%40"))
}

pub(crate) fn raw(tensor: &str) -> String {
    escape(tensor).into_owned()
}

pub(crate) fn plane(tensor: &str, plane: &str) -> String {
    format!("{}#{}", escape(tensor), escape(plane))
}

pub(crate) fn blob(name: &str) -> String {
    format!("@blob/{}", escape(name))
}

pub(crate) fn section(section: &str, plane: &str) -> String {
    format!("@section/{}#{}", escape(section), escape(plane))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stored_names_never_collide(a in "[%#@a_/5 2]{0,6}", b in "[%#@a_/5 2]{0,6}", p in "[%#@a]{1,3}", q in "[%#@a]{1,3}") {
            prop_assert_eq!(raw(&a) == raw(&b), a == b);
            prop_assert_eq!(plane(&a, &p) == plane(&b, &q), (&a, &p) == (&b, &q));
            prop_assert_ne!(raw(&a), plane(&b, &q));
            prop_assert_ne!(raw(&a), blob(&b));
            prop_assert_ne!(plane(&a, &p), blob(&b));
            prop_assert_ne!(plane(&a, &p), section(&b, &q));
        }
    }

    #[test]
    fn the_metadata_key_is_never_a_tensor() {
        assert_eq!(raw("__metadata__"), "%5F_metadata__");
        assert_eq!(raw("%5F_metadata__"), "%255F_metadata__");
        assert_eq!(raw("model.layers.0.w"), "model.layers.0.w");
    }
}
