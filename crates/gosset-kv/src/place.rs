//! Which heads a codec serves.

use crate::{Frame, KvError, KvShape, Place, Probe, dither};

/// Layers and heads of a model, within what codecs can tell apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    shape: KvShape,
}

impl Places {
    /// # Errors
    ///
    /// [`KvError::Length`] for more layers or heads than dither has streams for.
    pub(crate) fn new(shape: KvShape) -> Result<Self, KvError> {
        for (what, found, expected) in [
            ("layers of the model", shape.layers, dither::MAX_LAYERS),
            ("heads of a layer", shape.kv_heads, dither::MAX_HEADS),
        ] {
            if found > expected {
                return Err(KvError::Length { what, found, expected });
            }
        }
        Ok(Self { shape })
    }

    pub(crate) fn shape(self) -> KvShape {
        self.shape
    }

    /// Index of a head among those of all layers.
    pub(crate) fn index(self, place: Place) -> Result<usize, KvError> {
        let (layer, head) = (place.layer as usize, place.head as usize);
        let KvShape { layers, kv_heads, .. } = self.shape;
        if layer >= layers {
            return Err(KvError::Length { what: "layers of the codec", found: layers, expected: layer + 1 });
        }
        if head >= kv_heads {
            return Err(KvError::Length { what: "heads of the codec", found: kv_heads, expected: head + 1 });
        }
        Ok(layer * kv_heads + head)
    }
}

/// The probe that a frame needs.
///
/// # Errors
///
/// [`KvError::Spec`] if there is none or it is one of another shape.
pub(crate) fn checked_probe(frame: Frame, shape: KvShape, probe: Option<&Probe>) -> Result<&Probe, KvError> {
    let spec = format!("frame={}", frame.name());
    let Some(probe) = probe else {
        let reason = "keys of the model have to be probed first; frame=none needs no probe".to_owned();
        return Err(KvError::Spec { spec, reason });
    };
    if probe.shape() != shape {
        let reason = format!("the probe is of {:?}, expected {shape:?}", probe.shape());
        return Err(KvError::Spec { spec, reason });
    }
    Ok(probe)
}
