package lukv

import "context"

// Accelerator computes a layer's reductions ([Layer.SquaredKeyNorms], those after it, and those
// of unrotated keys) on a device, from the entries that are there. Every method returns newly allocated
// rows, exact up to the device's rounding, or [errors.ErrUnsupported] if the device
// cannot compute it; then the layer reads its entries.
type Accelerator interface {
	// KeyNorms and ValueNorms return the lengths of keys and of values, [K][Len(h)].
	KeyNorms(ctx context.Context) ([][]float32, error)
	ValueNorms(ctx context.Context) ([][]float32, error)

	// OutputNorms returns [Layer.OutputNorms], [K][Len(h)].
	OutputNorms(ctx context.Context) ([][]float32, error)

	// MeanCosines returns [Layer.MeanCosines], [K][Len(h)].
	MeanCosines(ctx context.Context) ([][]float32, error)

	// QuadraticForms returns [Layer.QuadraticForms], [H][Len(h)].
	QuadraticForms(ctx context.Context, linear, form []float32) ([][]float32, error)

	// KeyDistances returns the squared distance of every key from the mean of its head's
	// keys, and LinearForms k·keys[h] + v·values[h] for every key k and value v of a KV head
	// h, both [K][Len(h)], with the rotation of keys undone by frequencies, [D/2], as
	// [Layer.Unrotate] does without scale. keys and values are [K][D].
	KeyDistances(ctx context.Context, frequencies []float64) ([][]float32, error)
	LinearForms(ctx context.Context, keys, values []float32, frequencies []float64) ([][]float32, error)

	// WindowMeans returns [Layer.WindowMeans] for the newest w queries, [H][Len(h)]. Every
	// head has more than w entries.
	WindowMeans(ctx context.Context, w int) ([][]float32, error)
}

// SetMoments sets the statistics of query head q to those of n rows measured
// elsewhere: their mean, [D], and biased covariance, [D][D] (nil without second
// moments). No rows can be added afterwards.
func (s *QueryStats) SetMoments(q, n int, mean, cov []float64) {
	h, N := &s.heads[q], float64(n)
	h.n, h.filled = n, 0
	for a, v := range mean[:s.dim] {
		h.origin[a] = float32(v)
		h.sum[a] = float64((v - float64(h.origin[a])) * N)
	}
	if h.outer == nil {
		return
	}
	for a := range s.dim {
		for b := range s.dim {
			// The origin is the mean, up to rounding.
			da, db := h.sum[a]/N, h.sum[b]/N
			h.outer[a*s.dim+b] = float64((cov[a*s.dim+b] + float64(da*db)) * N)
		}
	}
}
