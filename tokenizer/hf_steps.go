package tokenizer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// maxSteps bounds the steps of a normalizer, a pre-tokenizer or a decoder.
const maxSteps = 16

// steps returns the parts of a Sequence, including those of nested Sequences, or
// the part itself.
func (p hfPart) steps(subs func(hfPart) []hfPart) ([]hfPart, error) {
	var out []hfPart
	var flatten func(p hfPart)
	flatten = func(p hfPart) {
		if p.Type != "Sequence" {
			out = append(out, p)
			return
		}
		for _, sub := range subs(p) {
			flatten(sub)
		}
	}
	flatten(p)
	if len(out) > maxSteps {
		return nil, fmt.Errorf("%d steps, expected at most %d", len(out), maxSteps)
	}
	return out, nil
}

// hfNormalizers makes the steps of a normalizer.
func hfNormalizers(p hfPart) ([]normalizer, error) {
	steps, err := p.steps(func(p hfPart) []hfPart { return p.Normalizers })
	var out []normalizer
	grown := 1
	for _, p := range steps {
		n, times, err := hfNormalizer(p)
		if err != nil {
			return nil, err
		}
		if grown *= times; grown > maxGrowth {
			return nil, fmt.Errorf("a text may become %d times as long, expected at most %d", grown, maxGrowth)
		}
		out = append(out, n)
	}
	return out, err
}

// hfNormalizer makes one step, which lengthens a text by a factor of up to times.
func hfNormalizer(p hfPart) (n normalizer, times int, err error) {
	switch p.Type {
	// The factors are those of Unicode Standard Annex 15, for UTF-8.
	case "NFC":
		return unicodeForm(norm.NFC), 3, nil
	case "NFD":
		return unicodeForm(norm.NFD), 3, nil
	case "NFKC":
		return unicodeForm(norm.NFKC), 11, nil
	case "NFKD":
		return unicodeForm(norm.NFKD), 11, nil
	case "Lowercase":
		return lowercase{}, 2, nil
	case "Strip":
		return stripBlanks{p.StripLeft, p.StripRight}, 1, nil
	case "Prepend":
		if len(p.Prepend) > maxGrowth {
			return nil, 0, fmt.Errorf("type Prepend: %d bytes, expected at most %d", len(p.Prepend), maxGrowth)
		}
		return prependText(p.Prepend), 1, nil
	case "Replace":
		m, err := p.Pattern.matcher()
		if err != nil {
			return nil, 0, fmt.Errorf("type Replace: %w", err)
		}
		return replaceText{m, p.Content}, growth(m, p.Content), nil
	}
	return nil, 0, unsupported("type %q", p.Type)
}

func (p *hfPattern) matcher() (matcher, error) {
	switch {
	case p != nil && p.String != nil && *p.String != "":
		return literal(*p.String), nil
	case p != nil && p.Regex != nil && *p.Regex != "":
		return newMatcher(*p.Regex)
	}
	return nil, errors.New("no pattern, expected String or Regex")
}

// hfPreTokenizer appends the steps of a pre-tokenizer; bytes says that their
// output is in the byte-level alphabet.
func hfPreTokenizer(out []preTokenizer, p hfPart) (_ []preTokenizer, bytes bool, err error) {
	switch p.Type {
	case "Sequence":
		for _, sub := range p.PreTokenizers {
			if bytes {
				return nil, false, unsupported("%s behind ByteLevel", sub.Type)
			}
			if out, bytes, err = hfPreTokenizer(out, sub); err != nil {
				return nil, false, err
			}
		}
		return out, bytes, nil
	case "ByteLevel":
		b := byteLevel{prefixSpace: isTrue(p.AddPrefixSpace)}
		if isTrue(p.UseRegex) {
			if b.words, err = newMatcher(gpt2Pattern); err != nil {
				return nil, false, err
			}
		}
		switch {
		case b.prefixSpace:
			out = append(out, b)
		case b.words != nil:
			out = append(out, split{m: b.words})
		}
		return out, true, nil
	case "Split":
		m, err := p.Pattern.matcher()
		if err != nil {
			return nil, false, fmt.Errorf("type Split: %w", err)
		}
		how, ok := behaviours[p.Behavior]
		if !ok {
			return nil, false, unsupported("type Split: behavior %q", p.Behavior)
		}
		return append(out, split{m: m, how: how, invert: p.Invert}), false, nil
	case "Digits":
		if p.IndividualDigits {
			return append(out, split{m: digitRuns{classes(), 1}}), false, nil
		}
		return append(out, split{m: digitRuns{classes(), math.MaxInt}, how: contiguous}), false, nil
	case "Metaspace":
		m := metaspace{mark: p.Replacement, split: isTrue(p.Split)}
		if oneRune(p.Replacement) == 0 {
			return nil, false, fmt.Errorf("type Metaspace: replacement %q, expected one character", p.Replacement)
		}
		if m.scheme, err = p.scheme(); err != nil {
			return nil, false, err
		}
		return append(out, m), false, nil
	}
	return nil, false, unsupported("type %q", p.Type)
}

// scheme is the prepend scheme of a Metaspace; add_prefix_space is its older form.
func (p hfPart) scheme() (prependScheme, error) {
	if p.PrependScheme == nil {
		if isTrue(p.AddPrefixSpace) {
			return prependAlways, nil
		}
		return prependNever, nil
	}
	switch *p.PrependScheme {
	case "always":
		return prependAlways, nil
	case "first":
		return prependFirst, nil
	case "never":
		return prependNever, nil
	}
	return 0, fmt.Errorf("type Metaspace: prepend_scheme %q, expected always, first or never", *p.PrependScheme)
}

// hfPostProcessor sets the tokens around a text.
func (t *Tokenizer) hfPostProcessor(p hfPart) error {
	switch p.Type {
	case "Sequence":
		for _, sub := range p.Processors {
			if err := t.hfPostProcessor(sub); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		return nil // changes offsets only
	case "BertProcessing", "RobertaProcessing":
		cls, err := tokenAndID(p.Cls)
		if err != nil {
			return fmt.Errorf("%s: cls: %w", p.Type, err)
		}
		sep, err := tokenAndID(p.Sep)
		if err != nil {
			return fmt.Errorf("%s: sep: %w", p.Type, err)
		}
		t.prefix = append([]int32{cls}, t.prefix...)
		t.suffix = append(t.suffix, sep)
		return nil
	case "TemplateProcessing":
		var before, after []int32
		texts := 0
		for _, part := range p.Single {
			for kind, v := range part {
				switch {
				case kind == "Sequence" && v.ID == "A" && len(part) == 1:
					texts++
				case kind == "SpecialToken" && len(part) == 1:
					special, ok := p.SpecialTokens[v.ID]
					if !ok {
						return fmt.Errorf("type TemplateProcessing: %q is not among its special_tokens", v.ID)
					}
					for _, id := range special.IDs {
						if err := checkID(id); err != nil {
							return fmt.Errorf("type TemplateProcessing: %q: %w", v.ID, err)
						}
						if texts == 0 {
							before = append(before, int32(id))
						} else {
							after = append(after, int32(id))
						}
					}
				default:
					return unsupported("type TemplateProcessing: %s %q in a single text", kind, v.ID)
				}
			}
		}
		if texts != 1 {
			return fmt.Errorf("type TemplateProcessing: the text stands in the template %d times, expected once", texts)
		}
		t.prefix = append(before, t.prefix...)
		t.suffix = append(t.suffix, after...)
		return nil
	}
	return unsupported("type %q", p.Type)
}

// tokenAndID reads ["</s>", 2].
func tokenAndID(raw json.RawMessage) (int32, error) {
	var pair []json.RawMessage
	var id int64
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
		return 0, fmt.Errorf("found %.40s, expected a token and its id", raw)
	}
	if err := json.Unmarshal(pair[1], &id); err != nil {
		return 0, fmt.Errorf("found id %.40s, expected an integer", pair[1])
	}
	return int32(id), checkID(id)
}

// maxStrip bounds the characters that a decoder strips from an end of the text.
const maxStrip = 64

// hfDecoder makes the decode table.
func (t *Tokenizer) hfDecoder(p *hfPart) error {
	t.dec = newDecodeTable(t.size)
	d := &t.dec
	var steps []hfPart
	if p != nil {
		var err error
		if steps, err = p.steps(func(p hfPart) []hfPart { return p.Decoders }); err != nil {
			return err
		}
	} else {
		d.sep = " "
	}

	// Steps that depend on the token alone.
	type step func(token string, first bool) string
	var alone []step
	fallback, fused, positional := false, false, false
	grown := 1
	for _, p := range steps {
		switch p.Type {
		case "ByteLevel":
			if fallback || fused || positional {
				return unsupported("type ByteLevel behind ByteFallback, Fuse or Metaspace")
			}
			d.bytes, fused = true, true
		case "ByteFallback":
			if fallback || fused {
				return unsupported("type ByteFallback behind ByteFallback or Fuse")
			}
			fallback = true
			d.wholeRuns = true
		case "Fuse":
			fused = true
		case "Metaspace":
			if fallback || fused {
				return unsupported("type Metaspace behind ByteFallback or Fuse")
			}
			scheme, err := p.scheme()
			if err != nil {
				return err
			}
			if oneRune(p.Replacement) == 0 {
				return fmt.Errorf("type Metaspace: replacement %q, expected one character", p.Replacement)
			}
			positional = positional || scheme != prependNever
			alone = append(alone, func(token string, first bool) string {
				if first && scheme != prependNever {
					return strings.ReplaceAll(token, p.Replacement, "")
				}
				return strings.ReplaceAll(token, p.Replacement, " ")
			})
		case "Replace":
			if fallback || fused {
				return unsupported("type Replace behind ByteFallback or Fuse")
			}
			m, err := p.Pattern.matcher()
			if err != nil {
				return fmt.Errorf("type Replace: %w", err)
			}
			if grown *= growth(m, p.Content); grown > maxGrowth {
				return fmt.Errorf("a token may become %d times as long, expected at most %d", grown, maxGrowth)
			}
			plain := new(scratch)
			plain.begin(context.Background(), math.MaxInt)
			alone = append(alone, func(token string, _ bool) string {
				var b strings.Builder
				done := 0
				for _, f := range m.find(plain, nil, token) {
					b.WriteString(token[done:f.start] + p.Content)
					done = f.end
				}
				return b.String() + token[done:]
			})
		case "Strip":
			if oneRune(p.Content) == 0 || min(p.Start, p.Stop) < 0 || max(p.Start, p.Stop) > maxStrip {
				return fmt.Errorf("type Strip: content %.40q, start %d, stop %d: expected one character and counts up to %d", p.Content, p.Start, p.Stop, maxStrip)
			}
			st := stripChars{p.Content, p.Start, p.Stop}
			switch {
			case fused:
				d.fused = append(d.fused, st)
			case fallback:
				d.perToken = append(d.perToken, st)
			default:
				alone = append(alone, func(token string, _ bool) string { return st.apply(token) })
			}
		default:
			return unsupported("type %q", p.Type)
		}
	}
	if d.bytes && len(d.fused) > 0 {
		return unsupported("type Strip behind ByteLevel")
	}

	special := make(map[string]bool)
	for _, a := range t.added {
		if a.special {
			special[a.content] = true
		}
	}
	for id := range t.size {
		_, added := t.addedByID[int32(id)]
		if !added && (id >= len(t.model.pieces) || t.model.pieces[id] == "" && len(t.names) == 0) {
			continue // a gap in the vocabulary
		}
		if d.bytes && len(alone) == 0 && !added && t.model.byteLevel && t.model.pieces[id] != "" {
			d.kind[id], d.text[id] = decodeText, t.model.pieces[id]
			continue
		}
		name := t.Piece(int32(id))
		if i, ok := t.addedByID[int32(id)]; ok && t.added[i].normalized {
			name = t.normalize(name)
		}
		if name == "" {
			continue
		}
		d.kind[id] = decodeText
		d.skip[id] = special[name]
		text := name
		for _, f := range alone {
			text = f(text, false)
		}
		if positional {
			first := name
			for _, f := range alone {
				first = f(first, true)
			}
			if first != text {
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
		if fallback {
			if b, ok := parseByte(text); ok {
				d.kind[id] = decodeByte
				text = string([]byte{b})
			}
		}
		d.text[id] = text
	}
	return nil
}
