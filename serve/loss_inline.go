package serve

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/http"
	"sync"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/lukv"
)

// settleLoss measures what the compression of a request's context loses, or chooses its ratio
// by that, if kv_compression asks for it. Later requests about the same context take what
// was measured then.
func (s *Server) settleLoss(r *http.Request, a *answering) error {
	first := &a.queries[0] // all prompts have the same context
	if !a.ask.asked() || first.Context == 0 {
		return nil
	}
	q := engine.Request{Prompt: first.Prompt[:first.Context], Policy: first.Policy, Context: first.Context, Protected: first.Protected, Salt: first.Salt}
	key := a.ask.key(a.v, s.salted(contextOf(r), q))
	m, known := s.losses.get(key)
	if !known {
		loss, policy, err := s.chooseCompression(r, a.v, q, q.Policy, a.ask, nil)
		if err != nil {
			return a.error(err)
		}
		m = measuredLoss{newEstimatedLoss(loss), policy}
		if len(policy.String()) <= mostLossPolicy {
			s.losses.put(key, m)
		}
	}
	a.loss = m.loss
	for i := range a.queries {
		a.queries[i].Policy = m.policy
	}
	return nil
}

// key identifies a measurement: by the model, the client's salt, the tokens, the policy and
// the question.
func (l lossRequest) key(v *served, q engine.Request) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%q\x00%s\x00%d %d\x00%v %v\x00", v.m.ID(), q.Salt, q.Policy, q.Context, q.Protected, l.chooses, l.bound)
	if err := binary.Write(h, binary.LittleEndian, q.Prompt); err != nil {
		panic("serve: " + err.Error()) // a slice of integers, and a hash takes everything
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// measuredLoss is a loss, and the policy that it is of.
type measuredLoss struct {
	loss   *estimatedLoss
	policy *lukv.Policy
}

// mostLosses bounds the losses that a server remembers, and mostLossPolicy the bytes of the
// policy of each.
const (
	mostLosses     = 256
	mostLossPolicy = 64 << 10
)

// losses remembers the losses measured last. The zero value is empty.
type losses struct {
	mu    sync.Mutex
	by    map[[sha256.Size]byte]measuredLoss
	order [][sha256.Size]byte // the oldest first
}

func (l *losses) get(key [sha256.Size]byte) (measuredLoss, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m, ok := l.by[key]
	return m, ok
}

func (l *losses) put(key [sha256.Size]byte, m measuredLoss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[[sha256.Size]byte]measuredLoss{}
	}
	if _, there := l.by[key]; !there {
		if len(l.order) == mostLosses {
			delete(l.by, l.order[0])
			l.order = append(l.order[:0], l.order[1:]...)
		}
		l.order = append(l.order, key)
	}
	l.by[key] = m
}
