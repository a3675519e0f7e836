package study

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
)

const stateFormat = "lukv analysis state 1"

// State is the unfinished work of a study: the results of its parts, by name. A
// study takes the parts that are there and adds those that it measures. A nil State
// holds nothing.
type State struct {
	Format  string `json:"format"`
	Command string `json:"command"` // the program's command line, for its user
	Model   string `json:"model"`

	// Inputs is a hash of the inputs of the parts besides the model. The study sets it,
	// and refuses a state with a different one.
	Inputs string                     `json:"inputs"`
	Parts  map[string]json.RawMessage `json:"parts"`

	// Save, if not nil, is called when parts have been added. Its error ends the study.
	Save func() error `json:"-"`
}

// ReadState reads a state. name appears in errors.
func ReadState(r io.Reader, name string) (*State, error) {
	var s State
	err := json.NewDecoder(io.LimitReader(r, maxFile)).Decode(&s)
	if err != nil {
		err = fmt.Errorf("%w, expected an object of the format %q", err, stateFormat)
	} else if s.Format != stateFormat {
		err = fmt.Errorf("format %q, expected %q", s.Format, stateFormat)
	}
	if err != nil {
		return nil, fmt.Errorf("read unfinished work %s: %w", name, err)
	}
	return &s, nil
}

// Write writes the state.
func (s *State) Write(w io.Writer) error {
	s.Format = stateFormat
	return report.WriteJSON(w, s)
}

// begin sets what the parts depend on, and refuses a state that depends on something
// else.
func (s *State) begin(inputs ...any) error {
	if s == nil {
		return nil
	}
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(inputs); err != nil {
		return err
	}
	sum := fmt.Sprintf("%x", h.Sum(nil))
	if s.Inputs != "" && s.Inputs != sum {
		return errors.New("unfinished work of other data, options or profiles (remove it to begin anew)")
	}
	s.Inputs = sum
	return nil
}

// has reports whether a part is there.
func (s *State) has(part string) bool {
	return s != nil && s.Parts[part] != nil
}

// take reads a part into v and reports whether it is there.
func (s *State) take(part string, v any) (bool, error) {
	if !s.has(part) {
		return false, nil
	}
	d := json.NewDecoder(bytes.NewReader(s.Parts[part]))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return false, fmt.Errorf("unfinished work: %s: %w (remove it to begin anew)", part, err)
	}
	return true, nil
}

// put adds a part, or replaces it.
func (s *State) put(part string, v any) error {
	if s == nil {
		return nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if s.Parts == nil {
		s.Parts = map[string]json.RawMessage{}
	}
	s.Parts[part] = data
	return nil
}

// save calls Save, if there is one.
func (s *State) save() error {
	if s == nil || s.Save == nil {
		return nil
	}
	return s.Save()
}

// policyInput is what parts depend on in a policy: its JSON, which omits the profile,
// and the profile's digest.
type policyInput struct {
	Policy  *lukv.Policy
	Profile string
}

func inputOf(p *lukv.Policy) (in policyInput, err error) {
	if in.Policy = p; p != nil && p.Profile != nil {
		in.Profile, err = p.Profile.Digest()
	}
	return in, err
}

// methodInputs returns the same for methods, with their names.
func methodInputs(methods []eval.Method) (out []any, err error) {
	for _, m := range methods {
		in, err := inputOf(m.Policy)
		if err != nil {
			return nil, err
		}
		out = append(out, m.Name, in)
	}
	return out, nil
}
