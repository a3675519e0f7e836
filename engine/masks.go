package engine

import "sync"

// masks are the choices of a request whose masks are still to be computed. A goroutine does
// that, one after the other, while the steps go on: the mask for a token depends only on the
// tokens before it, and so it is usually there before the logits are.
type masks struct {
	mu      sync.Mutex
	asked   []*choice
	running bool // the goroutine
}

// maskState says how far the mask for the next token of a choice is.
type maskState int

const (
	maskNone maskState = iota
	maskAsked
	maskReady
)

// masked reports whether the tokens of a choice have masks.
func (c *choice) masked() bool { return c.j.req.Mask != nil && c.j.answerTokens > 0 }

// askMask asks for the mask of the choice's next token. Until it is there, the choice's
// tokens do not change.
func (c *choice) askMask() {
	if !c.masked() || c.maskState != maskNone {
		return
	}
	c.maskState = maskAsked
	m := &c.j.masks
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, c)
	if !m.running {
		m.running = true
		c.j.e.masks.Go(c.j.computeMasks)
	}
}

// computeMasks computes the masks that are asked for, until there are no more.
func (j *job) computeMasks() {
	m := &j.masks
	for {
		m.mu.Lock()
		if len(m.asked) == 0 || j.ctx.Err() != nil {
			m.running = false
			m.mu.Unlock()
			return
		}
		c := m.asked[0]
		m.asked = m.asked[1:]
		m.mu.Unlock()
		mask, err := j.req.Mask(j.ctx, c.index, c.answer)
		j.e.post(func() { c.mask, c.maskErr, c.maskState = mask, err, maskReady })
	}
}
