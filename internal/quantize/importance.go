package quantize

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tokenizer"
)

// Importance is how much the columns of matrices matter: an error of a weight changes an
// output by as much as the input that it is multiplied with, so that squared errors count as much
// as the mean square of that input.
type Importance struct {
	Tokens int // of the text

	cfg  *arch.Config
	sums map[place]*squares
}

// place is where a matrix reads: its layer, and a role with the same input.
type place struct {
	layer int
	role  arch.Role
}

// squares are sums of squares of columns.
type squares struct {
	sum  []float64
	rows int
}

// calibrationTokens is how many tokens are computed in one context.
const calibrationTokens = 512

// Calibrate measures the importance of columns on a text, which the model at path, a
// folder or a GGUF file, computes with its stored weights in pieces of at most 512 tokens.
// progress, if not nil, is told how many tokens are done.
func Calibrate(ctx context.Context, path, text string, progress func(done, total int)) (*Importance, error) {
	im, err := calibrate(ctx, path, text, progress)
	if err != nil {
		return nil, fmt.Errorf("calibrate %s: %w", path, err)
	}
	return im, nil
}

func calibrate(ctx context.Context, path, text string, progress func(done, total int)) (*Importance, error) {
	im := &Importance{sums: map[place]*squares{}}
	m, err := model.Open(ctx, path, model.WithPrecision(model.PrecisionF32), model.WithInputs(im.add))
	if err != nil {
		return nil, err
	}
	defer m.Close()
	im.cfg = m.Config()
	if err := rounded(im.cfg); err != nil {
		return nil, err
	}
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	ids, err := tok.EncodeContext(ctx, text, math.MaxInt, tokenizer.EncodeOptions{SpecialAsText: true})
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, errors.New("the text has no tokens")
	}
	for len(ids) > im.Tokens {
		piece := ids[im.Tokens:min(len(ids), im.Tokens+min(calibrationTokens, im.cfg.MaxPositions))]
		if err := prefill(ctx, m, piece); err != nil {
			return nil, err
		}
		im.Tokens += len(piece)
		if progress != nil {
			progress(im.Tokens, len(ids))
		}
	}
	return im, nil
}

func prefill(ctx context.Context, m *model.Model, ids []int32) error {
	s, err := m.NewSession(model.SessionOptions{})
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Prefill(ctx, ids)
}

func (im *Importance) add(layer int, role arch.Role, x []float32) {
	s := im.sums[place{layer, role}]
	if s == nil {
		s = &squares{sum: make([]float64, len(x))}
		im.sums[place{layer, role}] = s
	}
	for i, v := range x {
		s.sum[i] += float64(float64(v) * float64(v))
	}
	s.rows++
}

// inputOf names the role under which the input of a matrix is seen.
var inputOf = map[arch.Role]arch.Role{
	arch.RoleQ: arch.RoleQ, arch.RoleK: arch.RoleQ, arch.RoleV: arch.RoleQ, arch.RoleO: arch.RoleO,
	arch.RoleGate: arch.RoleGate, arch.RoleUp: arch.RoleGate, arch.RoleDown: arch.RoleDown,
	arch.RoleSharedGate: arch.RoleGate, arch.RoleSharedUp: arch.RoleGate, arch.RoleSharedDown: arch.RoleSharedDown,
	arch.RoleExpertGate: arch.RoleGate, arch.RoleExpertUp: arch.RoleGate, arch.RoleExpertDown: arch.RoleExpertDown,
}

// of returns the importance of the columns of a matrix, nil if they are alike: nothing is
// known, or they were 0 throughout.
func (im *Importance) of(layer int, role arch.Role) []float32 {
	if im == nil {
		return nil
	}
	s := im.sums[place{layer, inputOf[role]}]
	if s == nil {
		return nil
	}
	out, most := make([]float32, len(s.sum)), float32(0)
	for i, v := range s.sum {
		out[i] = float32(v / float64(s.rows))
		most = max(most, out[i])
	}
	if !(most > 0) {
		return nil
	}
	return out
}

// tensors returns the importance of the columns of matrices by their names in a GGUF file.
func (im *Importance) tensors() map[string][]float32 {
	out := map[string][]float32{}
	table := im.cfg.Tensors()
	for at, p := range im.cfg.Plans() {
		name := func(role arch.Role) string { return table.Name(arch.GGUF, role, at) }
		for _, role := range matrixRoles {
			if p.Shape(im.cfg, role) == nil {
				continue
			}
			for x := range max(1, p.FFN.Experts) {
				for _, s := range p.Stored(im.cfg, role, x, name) {
					if !strings.Contains(s.Name, "%") {
						out[s.Name] = im.of(at, role)
					}
				}
			}
		}
	}
	return out
}
