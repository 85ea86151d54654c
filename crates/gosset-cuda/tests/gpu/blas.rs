//! Dense products against f64, every output, by every kernel that the libraries offer.

use gosset_codec::calibrate::gaussian;
use gosset_cuda::blas::{Blas, BlasType, GemmShape, Lt};
use gosset_cuda::{CudaError, Gpu, Graph};
use half::{bf16, f16};

/// Shapes with sides that no tile divides.
const SHAPES: [GemmShape; 5] = [
    GemmShape { n: 1, k: 1, batch: 1 },
    GemmShape { n: 48, k: 64, batch: 3 },
    GemmShape { n: 129, k: 257, batch: 1 },
    GemmShape { n: 4096, k: 512, batch: 1 },
    GemmShape { n: 513, k: 1000, batch: 17 },
];

/// The numbers of a type and back.
trait Number: BlasType {
    fn of(v: f32) -> Self;
    fn value(self) -> f64;
    /// Half a unit of the last place of 1.
    const ROUNDING: f64;
}

impl Number for f32 {
    fn of(v: f32) -> Self {
        v
    }
    fn value(self) -> f64 {
        self.into()
    }
    const ROUNDING: f64 = 6.0e-8;
}

impl Number for f16 {
    fn of(v: f32) -> Self {
        f16::from_f32(v)
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
    const ROUNDING: f64 = 4.9e-4;
}

impl Number for bf16 {
    fn of(v: f32) -> Self {
        bf16::from_f32(v)
    }
    fn value(self) -> f64 {
        self.to_f64()
    }
    const ROUNDING: f64 = 3.91e-3;
}

/// The libraries, or a loud line where there is no device or no library.
fn libraries() -> Option<(Gpu, Blas, Lt)> {
    let gpu = crate::gpu()?;
    match (Blas::new(&gpu), Lt::new(&gpu)) {
        (Ok(blas), Ok(lt)) => Some((gpu, blas, lt)),
        (Err(CudaError::NoLibrary { library }), _) | (_, Err(CudaError::NoLibrary { library })) => {
            eprintln!("SKIPPED, {library} is not here");
            None
        }
        (Err(error), _) | (_, Err(error)) => panic!("{error}"),
    }
}

/// Multiplies with every kernel and holds every output to the f64 product.
fn check<T: Number, O: Number>(gpu: &Gpu, blas: &Blas, lt: &Lt) {
    let stream = gpu.stream().unwrap();
    for shape in SHAPES {
        let GemmShape { n, k, batch } = shape;
        let draw = |len, seed| gaussian(len, seed).into_iter().map(T::of).collect::<Vec<T>>();
        let (w, x) = (draw(n * k, 1), draw(batch * k, 2));
        let (w_dev, x_dev) = (gpu.upload(&w).unwrap(), gpu.upload(&x).unwrap());
        let poison = vec![O::of(f32::NAN); batch * n];
        let mut y = gpu.upload(&poison).unwrap();
        let judge = |found: Vec<O>, kernel: &str| {
            for (i, y) in found.iter().enumerate() {
                let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
                let terms = x.iter().zip(w).map(|(x, w)| x.value() * w.value());
                let (sum, norm) = terms.fold((0.0, 0.0), |(sum, norm), term| (sum + term, norm + term.abs()));
                // f32 sums of k terms in any order, then one rounding of the result.
                let bound = norm * k as f64 * 6.0e-8 + sum.abs() * O::ROUNDING + 1e-30;
                assert!((y.value() - sum).abs() <= bound, "{kernel} {shape:?}, output {i}: {} for {sum}", y.value());
            }
        };
        blas.gemm(stream.as_ref(), shape, w_dev.as_slice(), x_dev.as_slice(), y.as_mut()).unwrap();
        judge(gpu.download(y.as_slice()).unwrap(), "cublasGemmEx");
        for (i, plan) in lt.plans::<T, O>(shape).unwrap().iter().enumerate() {
            y.write(&poison).unwrap();
            match lt.gemm(stream.as_ref(), plan, w_dev.as_slice(), x_dev.as_slice(), y.as_mut()) {
                Ok(()) => judge(gpu.download(y.as_slice()).unwrap(), &format!("cublasLt {i}")),
                // The heuristics may offer what the library then refuses.
                Err(error) => eprintln!("cublasLt {i} {shape:?}: {error}"),
            }
        }
        y.write(&poison).unwrap();
        let graph =
            Graph::capture(&stream, |stream| blas.gemm(stream, shape, w_dev.as_slice(), x_dev.as_slice(), y.as_mut()));
        graph.unwrap().launch(stream.as_ref()).unwrap();
        judge(gpu.download(y.as_slice()).unwrap(), "a graph of cublasGemmEx");
    }
}

#[test]
fn dense_products_are_those_of_f64() {
    let Some((gpu, blas, lt)) = libraries() else { return };
    check::<bf16, bf16>(&gpu, &blas, &lt);
    check::<bf16, f32>(&gpu, &blas, &lt);
    check::<f16, f16>(&gpu, &blas, &lt);
    check::<f16, f32>(&gpu, &blas, &lt);
    check::<f32, f32>(&gpu, &blas, &lt);
}

#[test]
fn operands_of_another_shape_are_refused() {
    let Some((gpu, blas, lt)) = libraries() else { return };
    let stream = gpu.stream().unwrap();
    let mut y = gpu.alloc::<f32>(8).unwrap();
    let w = gpu.alloc::<bf16>(32).unwrap();
    let x = gpu.alloc::<bf16>(4).unwrap();
    let shape = GemmShape { n: 8, k: 4, batch: 1 };
    let plan = lt.plans::<bf16, f32>(shape).unwrap().remove(0);
    for wrong in [GemmShape { n: 9, ..shape }, GemmShape { k: 5, ..shape }, GemmShape { batch: 2, ..shape }] {
        let error = blas.gemm(stream.as_ref(), wrong, w.as_slice(), x.as_slice(), y.as_mut()).unwrap_err();
        assert!(matches!(error, CudaError::Shape { .. }), "{error}");
    }
    let zero = GemmShape { n: 0, ..shape };
    assert!(matches!(lt.plans::<bf16, f32>(zero), Err(CudaError::Shape { .. })));
    let short = x.as_slice().slice(0..3).unwrap();
    assert!(lt.gemm(stream.as_ref(), &plan, w.as_slice(), short, y.as_mut()).is_err());
    let mut narrow = gpu.alloc::<bf16>(8).unwrap();
    assert!(lt.gemm(stream.as_ref(), &plan, w.as_slice(), x.as_slice(), narrow.as_mut()).is_err());
}
