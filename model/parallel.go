package model

// Parallel runs fn(0) … fn(n-1) on the model's worker threads, in any order, and returns
// when all are done. While another call or a forward pass has the workers, it runs fn in
// the calling goroutine. It does not allocate if fn already exists.
func (m *Model) Parallel(n int, fn func(i int)) { m.net.Pool.Run(n, 1, parallelTask(fn)) }

type parallelTask func(i int)

func (t parallelTask) Run(lo, hi, _ int) {
	for i := lo; i < hi; i++ {
		t(i)
	}
}

// firstError returns the first error of tasks that ran in parallel.
func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
