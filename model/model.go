package model

import (
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/internal/forward"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// Model is a loaded checkpoint. It is safe for concurrent use; each of its
// sessions is used by one goroutine at a time.
type Model struct {
	cfg       *Config          // that of net
	net       *forward.Network // what passes compute
	weights   *weights.Weights
	precision Precision
	log       *slog.Logger
	identity  func() string // see ID; for callers that keep the model from closing
	source    fs.FS         // the checkpoint folder, nil for models made in memory
	eos       []int32

	runs  runList
	plans planCache

	use users // of the weights

	digestMu sync.Mutex // held while the digest is made
	digests  string     // folder of those made earlier, "" for none
	digest   atomic.Pointer[string]

	memory *kvcache.Account // of all sessions, nil without a bound

	tokOnce sync.Once
	tok     *tokenizer.Tokenizer
	tokErr  error
}

// Config describes the network of a checkpoint.
type Config = arch.Config

// Config returns the model's configuration, which must not be changed.
func (m *Model) Config() *Config { return m.cfg }

// Precision returns the precision in use, never PrecisionAuto.
func (m *Model) Precision() Precision { return m.precision }

// Threads returns the number of threads.
func (m *Model) Threads() int { return m.net.Pool.Threads() }

// CPU returns the instruction set in use.
func (m *Model) CPU() kernels.CPU { return m.net.CPU }

// Weights returns the tensors of the model, valid until Close. They must not be changed.
func (m *Model) Weights() *weights.Weights { return m.weights }

// WeightBytes returns the bytes of all weights the model uses.
func (m *Model) WeightBytes() int64 { return m.weights.Bytes() }

// StepBytes returns the bytes of weights that a pass over n rows reads at most. It leaves
// out an embedding that is not also the head, as only single rows of it are read, and of a
// mixture of experts those that no row can have chosen.
func (m *Model) StepBytes(n int) int64 {
	w, plans := m.weights, m.cfg.Plans()
	bytes := w.Bytes()
	if !w.Tied() {
		bytes -= int64(len(w.Embed.Data))
	}
	for at := range w.Layers {
		all := int64(0)
		w.Layers[at].EachExpert(func(_ arch.Role, _ int, t *tensor.Tensor) { all += int64(len(t.Data)) })
		if f := &plans[at].FFN; f.Experts > 0 {
			bytes -= all - all*int64(min(f.Experts, n*f.Chosen))/int64(f.Experts)
		}
	}
	return bytes
}

// WeightType returns the type that most bytes of the weights have.
func (m *Model) WeightType() tensor.Type {
	var main tensor.Type
	bytes := map[tensor.Type]int{}
	m.weights.Each(func(_ string, t tensor.Tensor) {
		bytes[t.Type] += len(t.Data)
		if bytes[t.Type] > bytes[main] {
			main = t.Type
		}
	})
	return main
}

// Source returns the checkpoint's files, nil for a model made in memory.
func (m *Model) Source() fs.FS { return m.source }

// Tokenizer returns the checkpoint's tokenizer, loaded on first use.
func (m *Model) Tokenizer() (*tokenizer.Tokenizer, error) {
	m.tokOnce.Do(func() {
		if m.source == nil {
			m.tokErr = fmt.Errorf("model made in memory has no tokenizer")
			return
		}
		if m.tok, m.tokErr = tokenizer.Load(m.source); m.tokErr == nil {
			m.tokErr = m.checkAround(m.tok)
		}
	})
	return m.tok, m.tokErr
}

// checkAround refuses a tokenizer that puts tokens around texts which the model has no
// embedding for: every prompt would fail.
func (m *Model) checkAround(tok *tokenizer.Tokenizer) error {
	for _, id := range tok.Encode("", tokenizer.EncodeOptions{AddSpecial: true}) {
		if int(id) >= m.cfg.Vocab {
			return fmt.Errorf("tokenizer: found token %d around texts, expected one of the model's vocabulary of %d", id, m.cfg.Vocab)
		}
	}
	return nil
}

// acquire guards a computation against Close until release. It is refused as soon
// as Close waits.
func (m *Model) acquire() error { return m.use.begin(false) }

// hold is acquire for what takes no time. It is not refused while Close waits for
// others, since they may need it.
func (m *Model) hold() error { return m.use.begin(true) }

func (m *Model) release() { m.use.end() }

// users counts the users of a model.
type users struct {
	mu      sync.Mutex
	n       int
	closing bool
	none    chan struct{} // closed when nobody is left; nil before Close
}

func (u *users) begin(short bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closing && !(short && u.n > 0) {
		return fmt.Errorf("model: %w", ErrClosed)
	}
	u.n++
	return nil
}

func (u *users) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n--; u.n == 0 && u.closing {
		close(u.none)
	}
}

// close admits no more users and waits until none is left. It returns true for the
// first caller only; the others, too, return when nobody uses the model.
func (u *users) close() bool {
	u.mu.Lock()
	first := !u.closing
	if first {
		u.closing, u.none = true, make(chan struct{})
		if u.n == 0 {
			close(u.none)
		}
	}
	none := u.none
	u.mu.Unlock()
	<-none
	return first
}
