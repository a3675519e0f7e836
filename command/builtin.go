package command

import (
	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/embedded"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// openFramed opens the model and returns it with the framing for data whose questions
// follow their context without an extra separator. The caller closes the model.
func (f *modelFlags) openFramed(e *env, raw bool) (*model.Model, dialog.Framing, error) {
	m, err := f.open(e)
	if err != nil {
		return nil, dialog.Framing{}, err
	}
	framing := embedded.Framing
	switch {
	case raw:
		framing, err = dialog.PlainFraming(m)
	case f.Model != builtin.Name:
		framing, err = dialog.ChatFraming(e.ctx, m, dialog.FixedDate)
	}
	if err != nil {
		m.Close()
		return nil, dialog.Framing{}, err
	}
	return m, framing, nil
}
