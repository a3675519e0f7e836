package tokenizer

import (
	"context"
	"fmt"
	"math"
	"strings"
)

// maxStrip bounds the characters that a decoder strips from an end of the text.
const maxStrip = 64

// hfDecoding collects the steps of a decoder.
type hfDecoding struct {
	d *decodeTable

	// Steps that depend on the token alone, and whether it is the first one.
	alone []func(token string, first bool) string

	bytes, fallback, fused bool // ByteLevel, ByteFallback or Fuse has come
	positional             bool // a step treats the first token differently
	grown                  int  // how many times as long a token may become
}

// after refuses a step of a type that follows one that it must not follow.
func (h *hfDecoding) after(kind string, not ...string) error {
	come := map[string]bool{"ByteLevel": h.bytes, "ByteFallback": h.fallback, "Fuse": h.fused, "Metaspace": h.positional}
	for _, name := range not {
		if come[name] {
			return unsupported("type %s after %s", kind, name)
		}
	}
	return nil
}

// hfDecoders holds a function for each type of decoder.
var hfDecoders = map[string]func(h *hfDecoding, p hfPart) error{
	"ByteLevel":    (*hfDecoding).byteLevel,
	"ByteFallback": (*hfDecoding).byteFallback,
	"Fuse":         (*hfDecoding).fuse,
	"Metaspace":    (*hfDecoding).metaspace,
	"Replace":      (*hfDecoding).replace,
	"Strip":        (*hfDecoding).strip,
}

func (h *hfDecoding) byteLevel(hfPart) error {
	if err := h.after("ByteLevel", "ByteLevel", "ByteFallback", "Fuse", "Metaspace"); err != nil {
		return err
	}
	h.bytes, h.d.bytes = true, true
	return nil
}

func (h *hfDecoding) byteFallback(hfPart) error {
	if err := h.after("ByteFallback", "ByteLevel", "ByteFallback", "Fuse"); err != nil {
		return err
	}
	h.fallback, h.d.wholeRuns = true, true
	return nil
}

func (h *hfDecoding) fuse(hfPart) error {
	h.fused = true
	return nil
}

func (h *hfDecoding) metaspace(p hfPart) error {
	if err := h.after("Metaspace", "ByteLevel", "ByteFallback", "Fuse"); err != nil {
		return err
	}
	scheme, err := p.scheme()
	if err != nil {
		return err
	}
	if oneRune(p.Replacement) == 0 {
		return fmt.Errorf("type Metaspace: replacement %q, expected one character", p.Replacement)
	}
	h.positional = h.positional || scheme != prependNever
	h.alone = append(h.alone, func(token string, first bool) string {
		if first && scheme != prependNever {
			return strings.ReplaceAll(token, p.Replacement, "")
		}
		return strings.ReplaceAll(token, p.Replacement, " ")
	})
	return nil
}

func (h *hfDecoding) replace(p hfPart) error {
	if err := h.after("Replace", "ByteLevel", "ByteFallback", "Fuse"); err != nil {
		return err
	}
	m, err := p.Pattern.matcher()
	if err != nil {
		return fmt.Errorf("type Replace: %w", err)
	}
	if h.grown *= growth(m, p.Content); h.grown > maxReplacement {
		return fmt.Errorf("a token may become %d times as long, expected at most %d", h.grown, maxReplacement)
	}
	plain := new(scratch)
	plain.begin(context.Background(), math.MaxInt)
	h.alone = append(h.alone, func(token string, _ bool) string {
		var b strings.Builder
		done := 0
		for _, f := range m.find(plain, nil, token) {
			b.WriteString(token[done:f.start] + p.Content)
			done = f.end
		}
		return b.String() + token[done:]
	})
	return nil
}

func (h *hfDecoding) strip(p hfPart) error {
	if err := h.after("Strip", "ByteLevel"); err != nil {
		return err
	}
	if oneRune(p.Content) == 0 || min(p.Start, p.Stop) < 0 || max(p.Start, p.Stop) > maxStrip {
		return fmt.Errorf("type Strip: content %.40q, start %d, stop %d: expected one character and counts up to %d", p.Content, p.Start, p.Stop, maxStrip)
	}
	st := stripChars{p.Content, p.Start, p.Stop}
	switch {
	case h.fused:
		h.d.fused = append(h.d.fused, st)
	case h.fallback:
		h.d.perToken = append(h.d.perToken, st)
	default:
		h.alone = append(h.alone, func(token string, _ bool) string { return st.apply(token) })
	}
	return nil
}

// text returns the text of a token by its name.
func (h *hfDecoding) text(name string, first bool) string {
	for _, f := range h.alone {
		name = f(name, first)
	}
	return name
}

// hfDecoder makes the decode table.
func (t *Tokenizer) hfDecoder(p *hfPart) error {
	t.dec = newDecodeTable(t.size)
	h := &hfDecoding{d: &t.dec, grown: 1}
	if p == nil {
		h.d.sep = " "
	} else {
		steps, err := p.steps(func(p hfPart) []hfPart { return p.Decoders })
		if err != nil {
			return err
		}
		for _, p := range steps {
			add, ok := hfDecoders[p.Type]
			if !ok {
				return unsupported("type %q", p.Type)
			}
			if err := add(h, p); err != nil {
				return err
			}
		}
	}
	special := make(map[string]bool)
	for _, a := range t.added {
		if a.special {
			special[a.content] = true
		}
	}
	for id := range t.size {
		t.hfDecodeToken(h, id, special)
	}
	return nil
}

// hfDecodeToken enters a token into the decode table.
func (t *Tokenizer) hfDecodeToken(h *hfDecoding, id int, special map[string]bool) {
	d := h.d
	i, added := t.addedByID[int32(id)]
	if !added && (id >= len(t.model.pieces) || t.model.pieces[id] == "" && len(t.names) == 0) {
		return // a gap in the vocabulary
	}
	if d.bytes && len(h.alone) == 0 && !added && t.model.byteLevel && t.model.pieces[id] != "" {
		d.kind[id], d.text[id] = decodeText, t.model.pieces[id]
		return
	}
	name := t.Piece(int32(id))
	if added && t.added[i].normalized {
		name = t.normalize(name)
	}
	if name == "" {
		return
	}
	d.kind[id] = decodeText
	d.skip[id] = special[name]
	text := h.text(name, false)
	if h.positional {
		if first := h.text(name, true); first != text {
			if d.first == nil {
				d.first = make(map[int32]string)
			}
			d.first[int32(id)] = first
		}
	}
	if d.bytes {
		if raw, ok := fromByteLevel(text); ok {
			text = raw
		}
	}
	if h.fallback {
		if b, ok := parseByte(text); ok {
			d.kind[id] = decodeByte
			text = string([]byte{b})
		}
	}
	d.text[id] = text
}
