package weights

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/internal/lowbit"
	"github.com/lukv/lukv/tensor"
)

// Matrices that another program stored in 8 or 4 bits are repacked when a checkpoint is
// opened, outside the Go heap: into blocks of the same integers and scales where a type of
// the runtime holds them exactly, else rounded to bf16. See package lowbit.

// tensor returns the tensor of the given name, repacked if the checkpoint stores it so.
func (l *loader) tensor(name string, shape []int) (t tensor.Tensor, file string, ok bool, err error) {
	module, isWeight := strings.CutSuffix(name, ".weight")
	if l.lowbit == nil || !isWeight || len(shape) != 2 || !l.lowbit.Stored(l.src, module) {
		t, file, ok = l.src.Tensor(name)
		return t, file, ok, nil
	}
	if t, ok := l.repacked[name]; ok {
		return t, l.checkpoint, true, nil
	}
	m, err := l.lowbit.Matrix(l.src, module, shape[0], shape[1])
	if err != nil {
		return t, "", false, fmt.Errorf("checkpoint %s: %w", l.checkpoint, err)
	}
	if t, err = l.w.repack(m); err != nil {
		return t, "", false, fmt.Errorf("checkpoint %s: weight of %q: %w", l.checkpoint, module, err)
	}
	for _, name := range m.Tensors {
		l.used[name] = true
	}
	l.repacked[name] = t
	return t, l.checkpoint, true, nil
}

// repackRows is how many rows are repacked at a time: enough for formats that store
// columns one after another.
const repackRows = 64

// repack returns a matrix in the type that Type gives, in new memory.
func (w *Weights) repack(m *lowbit.Matrix) (tensor.Tensor, error) {
	typ, _ := m.Type()
	row := typ.Bytes(m.Cols)
	mem, err := arena.Map(m.Rows * row)
	if err != nil {
		return tensor.Tensor{}, fmt.Errorf("memory for %d bytes: %w", m.Rows*row, err)
	}
	w.copies = append(w.copies, mem)
	data := mem[: m.Rows*row : m.Rows*row]
	var wait sync.WaitGroup
	errs := make([]error, runtime.GOMAXPROCS(0))
	for worker := range errs {
		wait.Go(func() {
			errs[worker] = guardFaults(func() {
				for from := worker * repackRows; from < m.Rows; from += len(errs) * repackRows {
					n := min(repackRows, m.Rows-from)
					m.Pack(data[from*row:(from+n)*row], typ, from, n)
				}
			})
		})
	}
	wait.Wait()
	return tensor.Tensor{Type: typ, Shape: []int{m.Rows, m.Cols}, Data: data}, errors.Join(errs...)
}

// freeCopies frees the memory of repacked matrices.
func (w *Weights) freeCopies() error {
	var errs []error
	for _, mem := range w.copies {
		errs = append(errs, arena.Unmap(mem))
	}
	w.copies = nil
	return errors.Join(errs...)
}

// noBiases returns an error if a repacked module has a bias that the network does not add:
// some programs store biases of zeros.
func (l *loader) noBiases(unused []string) error {
	for _, name := range unused {
		module, ok := strings.CutSuffix(name, ".bias")
		if _, repacked := l.repacked[module+".weight"]; !ok || !repacked {
			continue
		}
		t, file, _ := l.src.Tensor(name)
		if !t.Type.Float() {
			continue
		}
		for i, v := range t.Float32s(nil) {
			if v != 0 {
				return fmt.Errorf("checkpoint file %q: tensor %q: element %d is %v, but the network has no such bias, expected zeros", file, name, i, v)
			}
		}
	}
	return nil
}
