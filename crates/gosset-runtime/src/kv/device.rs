//! Which compressed caches a device can keep.

use gosset_kv::{Code, ExactType, Frame, KvSpec, Role, Rotation};

/// Positions of a page on a device.
const PAGE: usize = 64;

/// Widths of heads that kernels take.
const HEAD_DIMS: [usize; 2] = [64, 128];

/// Why a device cannot keep a cache of this specification, for heads of that width if it is known: what is expected and what was found.
/// `None` if it can.
///
/// ```
/// use gosset_runtime::kv_device_gap;
///
/// assert_eq!(kv_device_gap(&"shift-10@3".parse()?, Some(128)), None);
/// assert!(kv_device_gap(&"e8@3".parse()?, None).unwrap().contains("shift-10"));
/// # Ok::<(), gosset_kv::KvError>(())
/// ```
pub fn kv_device_gap(spec: &KvSpec, head_dim: Option<usize>) -> Option<String> {
    let KvSpec { key, value, policy, protect, .. } = spec;
    let gap = |expected: &str, found: String| Some(format!("expected {expected}, found {found}"));
    if !matches!((key.code, value.code), (Code::Shift(k), Code::Shift(v)) if k == v) {
        let found = |role| spec.role(role).code.name();
        let codes = format!("{} for keys and {} for values", found(Role::Key), found(Role::Value));
        return gap("shift-10 or shift-12 for both keys and values", codes);
    }
    if key.frame != Frame::Pairs {
        return gap("keys with frame=pairs", format!("frame={}", key.frame.name()));
    }
    if !key.scale {
        return gap("keys with scale=on", "scale=off".to_owned());
    }
    if value.rotation != Rotation::Rht {
        return gap("values with rot=rht", format!("rot={}", value.rotation.name()));
    }
    if policy.page != PAGE {
        return gap(&format!("page={PAGE}"), format!("page={}", policy.page));
    }
    if policy.exact != ExactType::F16 {
        return gap("exact=f16", format!("exact={}", policy.exact));
    }
    if !protect.is_empty() {
        return gap("no protected layers", "protect=…".to_owned());
    }
    match head_dim {
        Some(found) if !HEAD_DIMS.contains(&found) => gap("heads of 64 or 128", format!("heads of {found}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_for_the_processor_alone_are_told_what_is_expected() {
        let gap = |spec: &str, head_dim| kv_device_gap(&spec.parse().unwrap(), head_dim);
        for fits in ["shift-10@3", "shift-12@2.25,window=256,sinks=64", "shift-10@3,k@2,budget=fixed"] {
            assert_eq!(gap(fits, None), None, "{fits}");
            assert_eq!(gap(fits, Some(64)), None, "{fits}");
            assert!(gap(fits, Some(80)).unwrap().contains("heads of 80"));
        }
        for (spec, word) in [
            ("e8@3", "e8 for keys and e8 for values"),
            ("shift-10@3,v=e8@3", "e8 for values"),
            ("shift-10@3,v=shift-12@3", "shift-12 for values"),
            ("shift-10@3,frame=probe", "frame=probe"),
            ("shift-10@3,k.scale=off", "scale=off"),
            ("shift-10@3,v.rot=haar", "rot=haar"),
            ("shift-10@3,page=32", "page=32"),
            ("shift-10@3,exact=f32", "exact=f32"),
            ("shift-10@3,protect=0", "protected"),
            ("f16", "f16"),
        ] {
            let reason = gap(spec, Some(64)).unwrap();
            assert!(reason.contains(word), "{spec}: {reason}");
        }
    }
}
