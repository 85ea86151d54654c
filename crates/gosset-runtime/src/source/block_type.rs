//! Element and block types of tensors as stored: names, GGUF ids, sizes.

use candle_core::quantized::GgmlDType;

/// How a tensor's numbers are stored.
///
/// `len` weights in a row take `len / block_len * block_bytes` bytes; blocks never straddle rows.
/// Source: the GGUF specification; the ids are those of its `ggml_type` table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BlockType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// One row of the table behind names, ids and refusals.
struct Entry {
    ty: BlockType,
    name: &'static str,
    gguf_id: u32,
    block_len: usize,
    block_bytes: usize,
    candle: GgmlDType,
}

/// Sizes add up field by field: an f16 scale is 2 bytes, an f16 minimum 2, 32 four-bit codes 16, and so on.
const TABLE: [Entry; 13] = [
    Entry { ty: BlockType::F32, name: "F32", gguf_id: 0, block_len: 1, block_bytes: 4, candle: GgmlDType::F32 },
    Entry { ty: BlockType::F16, name: "F16", gguf_id: 1, block_len: 1, block_bytes: 2, candle: GgmlDType::F16 },
    Entry { ty: BlockType::Bf16, name: "BF16", gguf_id: 30, block_len: 1, block_bytes: 2, candle: GgmlDType::BF16 },
    Entry { ty: BlockType::Q4_0, name: "Q4_0", gguf_id: 2, block_len: 32, block_bytes: 18, candle: GgmlDType::Q4_0 },
    Entry { ty: BlockType::Q4_1, name: "Q4_1", gguf_id: 3, block_len: 32, block_bytes: 20, candle: GgmlDType::Q4_1 },
    Entry { ty: BlockType::Q5_0, name: "Q5_0", gguf_id: 6, block_len: 32, block_bytes: 22, candle: GgmlDType::Q5_0 },
    Entry { ty: BlockType::Q5_1, name: "Q5_1", gguf_id: 7, block_len: 32, block_bytes: 24, candle: GgmlDType::Q5_1 },
    Entry { ty: BlockType::Q8_0, name: "Q8_0", gguf_id: 8, block_len: 32, block_bytes: 34, candle: GgmlDType::Q8_0 },
    Entry { ty: BlockType::Q2K, name: "Q2_K", gguf_id: 10, block_len: 256, block_bytes: 84, candle: GgmlDType::Q2K },
    Entry { ty: BlockType::Q3K, name: "Q3_K", gguf_id: 11, block_len: 256, block_bytes: 110, candle: GgmlDType::Q3K },
    Entry { ty: BlockType::Q4K, name: "Q4_K", gguf_id: 12, block_len: 256, block_bytes: 144, candle: GgmlDType::Q4K },
    Entry { ty: BlockType::Q5K, name: "Q5_K", gguf_id: 13, block_len: 256, block_bytes: 176, candle: GgmlDType::Q5K },
    Entry { ty: BlockType::Q6K, name: "Q6_K", gguf_id: 14, block_len: 256, block_bytes: 210, candle: GgmlDType::Q6K },
];

impl BlockType {
    fn entry(self) -> &'static Entry {
        TABLE.iter().find(|e| e.ty == self).expect("the table has one row per variant")
    }

    /// The type with this GGUF id, `None` if it is unknown here.
    pub(crate) fn from_gguf_id(id: u32) -> Option<Self> {
        TABLE.iter().find(|e| e.gguf_id == id).map(|e| e.ty)
    }

    /// The type with this name, for instance `Q4_1`.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|e| e.name == name).map(|e| e.ty)
    }

    /// Every name, comma-separated, for messages.
    pub(crate) fn supported() -> String {
        TABLE.iter().map(|e| e.name).collect::<Vec<_>>().join(", ")
    }

    /// Name as GGUF tools print it.
    pub(crate) fn name(self) -> &'static str {
        self.entry().name
    }

    /// Id in a GGUF tensor table.
    #[cfg(any(test, feature = "fixture"))]
    pub(crate) fn gguf_id(self) -> u32 {
        self.entry().gguf_id
    }

    /// Weights per block.
    pub(crate) fn block_len(self) -> usize {
        self.entry().block_len
    }

    /// Bytes per block.
    pub(crate) fn block_bytes(self) -> usize {
        self.entry().block_bytes
    }

    /// Candle's name of the type.
    pub(crate) fn candle(self) -> GgmlDType {
        self.entry().candle
    }

    /// Bytes of one row of `cols` weights; `None` if blocks do not fill the row exactly or the size overflows.
    pub(crate) fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_agree_with_candle() {
        for e in &TABLE {
            assert_eq!(e.candle.block_size(), e.block_len, "{}", e.name);
            assert_eq!(e.candle.type_size(), e.block_bytes, "{}", e.name);
            assert_eq!(BlockType::from_gguf_id(e.gguf_id), Some(e.ty));
            assert_eq!(BlockType::from_name(e.name), Some(e.ty));
        }
    }

    #[test]
    fn rows_hold_whole_blocks() {
        assert_eq!(BlockType::Q8_0.row_bytes(64), Some(68));
        assert_eq!(BlockType::Q8_0.row_bytes(63), None);
        assert_eq!(BlockType::F32.row_bytes(usize::MAX / 2), None);
    }
}
