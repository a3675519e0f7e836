package tokenizer

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// SentencePiece model files are one protocol buffer message, ModelProto of
// sentencepiece_model.proto. These are the fields and types in use.
const (
	spmPieces         = 1
	spmTrainerSpec    = 2
	spmNormalizerSpec = 3

	pieceText  = 1
	pieceScore = 2
	pieceType  = 3

	trainerModelType    = 3
	trainerSpaceSuffix  = 24
	trainerByteFallback = 35
	trainerUnkSurface   = 44
	trainerBOS          = 46
	trainerEOS          = 47
	trainerPad          = 48

	normCharsMap    = 2
	normDummyPrefix = 3
	normExtraSpaces = 4
	normEscape      = 5

	typeNormal  = 1
	typeUnknown = 2
	typeControl = 3
	typeUser    = 4
	typeUnused  = 5
	typeByte    = 6

	modelUnigram = 1
	modelBPE     = 2
)

// spaceMark is how SentencePiece writes a blank.
const spaceMark = "\u2581"

// maxPieceLen bounds the length of a piece in bytes: the readers that try
// every way to split a piece take quadratic time in it.
const maxPieceLen = 1024

// unsupported returns an error about a feature that would give wrong ids if it
// were ignored; it wraps errors.ErrUnsupported.
func unsupported(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errors.ErrUnsupported)
}

// eachField walks through the fields of a protocol buffer message. data holds the
// bytes of a length-delimited field, number the value of any other.
func eachField(msg []byte, f func(field int, number uint64, data []byte) error) error {
	for at := 0; at < len(msg); {
		tag, n := binary.Uvarint(msg[at:])
		if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29 {
			return fmt.Errorf("byte %d of %d does not begin a field of a protocol buffer", at, len(msg))
		}
		at += n
		var number uint64
		var data []byte
		size := 0
		switch tag & 7 {
		case 0:
			if number, size = binary.Uvarint(msg[at:]); size <= 0 {
				return fmt.Errorf("number at byte %d of %d is cut off or too long", at, len(msg))
			}
		case 1:
			size = 8
		case 5:
			size = 4
		case 2:
			length, n := binary.Uvarint(msg[at:])
			if n <= 0 || length > uint64(len(msg)-at-n) {
				return fmt.Errorf("field at byte %d of %d extends beyond the end", at, len(msg))
			}
			at += n
			size = int(length)
			data = msg[at : at+size]
		default:
			return fmt.Errorf("byte %d of %d: unknown wire type %d", at, len(msg), tag&7)
		}
		if size > len(msg)-at {
			return fmt.Errorf("field at byte %d of %d extends beyond the end", at, len(msg))
		}
		switch tag & 7 {
		case 1:
			number = binary.LittleEndian.Uint64(msg[at:])
		case 5:
			number = uint64(binary.LittleEndian.Uint32(msg[at:]))
		}
		if err := f(int(tag>>3), number, data); err != nil {
			return err
		}
		at += size
	}
	return nil
}

// spmModel is a SentencePiece model, ModelProto.
type spmModel struct {
	pieces  []spmPiece
	trainer spmTrainer
	rules   spmRules
}

// spmPiece is ModelProto.SentencePiece.
type spmPiece struct {
	text  string
	score float32
	kind  uint64
}

// spmTrainer holds fields of TrainerSpec.
type spmTrainer struct {
	modelType     uint64
	spaceSuffix   bool
	byteFallback  bool
	unkSurface    string
	bos, eos, pad string
}

// spmRules holds fields of NormalizerSpec.
type spmRules struct {
	charsMap    []byte
	dummyPrefix bool
	trimSpaces  bool
	escape      bool
}

// protoField is a field of a message and where its value is stored: a *string,
// *[]byte, *uint64, *float32 or *bool.
type protoField struct {
	number int
	into   any
}

// readMessage stores the fields of a message; others are skipped.
func readMessage(msg []byte, fields ...protoField) error {
	return eachField(msg, func(field int, number uint64, data []byte) error {
		for _, f := range fields {
			if f.number != field {
				continue
			}
			switch into := f.into.(type) {
			case *string:
				*into = string(data)
			case *[]byte:
				*into = data
			case *uint64:
				*into = number
			case *float32:
				*into = math.Float32frombits(uint32(number))
			case *bool:
				*into = number != 0
			}
		}
		return nil
	})
}

// parseSPM reads the message of a SentencePiece model; absent fields have the defaults of
// sentencepiece_model.proto.
func parseSPM(data []byte) (*spmModel, error) {
	m := &spmModel{
		trainer: spmTrainer{modelType: modelUnigram, unkSurface: " \u2047 ", bos: "<s>", eos: "</s>", pad: "<pad>"},
		rules:   spmRules{dummyPrefix: true, trimSpaces: true, escape: true},
	}
	t, r := &m.trainer, &m.rules
	err := eachField(data, func(field int, _ uint64, msg []byte) error {
		switch field {
		case spmPieces:
			p := spmPiece{kind: typeNormal}
			err := readMessage(msg, protoField{pieceText, &p.text}, protoField{pieceScore, &p.score}, protoField{pieceType, &p.kind})
			if err != nil {
				return fmt.Errorf("piece %d: %w", len(m.pieces), err)
			}
			if len(m.pieces) > maxID {
				return fmt.Errorf("more than %d pieces", maxID)
			}
			m.pieces = append(m.pieces, p)
			return p.check(len(m.pieces) - 1)
		case spmTrainerSpec:
			return readMessage(msg, protoField{trainerModelType, &t.modelType}, protoField{trainerSpaceSuffix, &t.spaceSuffix},
				protoField{trainerByteFallback, &t.byteFallback}, protoField{trainerUnkSurface, &t.unkSurface},
				protoField{trainerBOS, &t.bos}, protoField{trainerEOS, &t.eos}, protoField{trainerPad, &t.pad})
		case spmNormalizerSpec:
			return readMessage(msg, protoField{normCharsMap, &r.charsMap}, protoField{normDummyPrefix, &r.dummyPrefix},
				protoField{normExtraSpaces, &r.trimSpaces}, protoField{normEscape, &r.escape})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, f := range [...]struct{ name, text string }{
		{"surface of the unknown piece", t.unkSurface}, {"BOS piece", t.bos}, {"EOS piece", t.eos}, {"padding piece", t.pad},
	} {
		if !utf8.ValidString(f.text) {
			return nil, fmt.Errorf("%s %.80q: expected UTF-8 text", f.name, f.text)
		}
	}
	return m, nil
}

// check checks the piece with the given id.
func (p *spmPiece) check(id int) error {
	if p.text == "" || len(p.text) > maxPieceLen || !utf8.ValidString(p.text) || p.score != p.score {
		return fmt.Errorf("piece %d %.80q with score %v: expected UTF-8 text of 1 to %d bytes and a number", id, p.text, p.score, maxPieceLen)
	}
	return nil
}

// check refuses models that are not of byte pair encoding or would give wrong ids.
func (m *spmModel) check() error {
	if len(m.pieces) == 0 {
		return errors.New("no pieces: not a SentencePiece model")
	}
	if m.trainer.modelType != modelBPE {
		names := map[uint64]string{modelUnigram: "unigram", 3: "word", 4: "char"}
		return unsupported("SentencePiece model of type %d %s, expected %d byte pair encoding",
			m.trainer.modelType, names[m.trainer.modelType], modelBPE)
	}
	if m.trainer.spaceSuffix {
		return unsupported("treat_whitespace_as_suffix")
	}
	for i, p := range m.pieces {
		if p.kind == typeUnused {
			return unsupported("piece %d %q is of type unused, which", i, p.text)
		}
	}
	return nil
}

// readSPM reads a SentencePiece model with byte pair encoding.
func readSPM(data []byte, cfg *config) (*Tokenizer, error) {
	m, err := parseSPM(data)
	if err != nil {
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	t, err := newSPM(m, cfg, isTrue(cfg.Legacy))
	if err != nil {
		return nil, err
	}
	t.format = "tokenizer.model"
	t.surround(cfg)
	return t, nil
}

// newSPM makes the tokenizer of a model with byte pair encoding. Special tokens that
// cfg does not name are set in it. With eachStretch, every stretch between special
// tokens has a blank before it, not only the first.
func newSPM(sp *spmModel, cfg *config, eachStretch bool) (*Tokenizer, error) {
	chars, err := newCharsMap(sp.rules.charsMap)
	if err != nil {
		return nil, fmt.Errorf("precompiled_charsmap: %w", err)
	}
	t := &Tokenizer{eachStretch: eachStretch, nameIDs: make(map[string]int32)}
	t.model = &bpe{spm: true, unk: none, fuseUnk: true, fallback: sp.trainer.byteFallback, runeID: make(map[rune]int32)}
	users, err := t.spmPieces(sp)
	if err != nil {
		return nil, err
	}
	if err := t.model.rankByScore(sp.pieces); err != nil {
		return nil, err
	}
	t.model.seal()
	if err := t.addExtra(cfg); err != nil {
		return nil, err
	}
	t.users = t.spmUsers(users)
	t.normalizers = []normalizer{spmNormal{
		chars: chars, users: t.users, dummyPrefix: sp.rules.dummyPrefix, trimSpaces: sp.rules.trimSpaces, escape: sp.rules.escape,
	}}
	// The normal form of a text has a leading blank, which a token in the middle
	// of a text does not: all are matched as written.
	for i := range t.added {
		t.added[i].normalized = false
	}
	sp.nameSpecial(cfg)
	t.finish(cfg)
	t.spmDecoder(sp)
	return t, nil
}

// spmPieces makes the pieces of the model and the added tokens; pieces of type
// user-defined are returned. Unused pieces get ids that no text has.
func (t *Tokenizer) spmPieces(sp *spmModel) (users []addedToken, err error) {
	m := t.model
	m.pieces = make([]string, len(sp.pieces))
	m.vocab = newPieceTable(len(sp.pieces))
	for b := range m.byteID {
		m.byteID[b] = none
	}
	seen := make(map[string]int, len(sp.pieces))
	for i, p := range sp.pieces {
		if p.kind == typeUnused {
			continue
		}
		id := int32(i)
		if k, ok := seen[p.text]; ok {
			return nil, fmt.Errorf("pieces %d and %d are both %q", k, i, p.text)
		}
		seen[p.text] = i
		m.pieces[i] = p.text
		if p.kind != typeNormal {
			t.nameIDs[p.text] = id
		}
		switch p.kind {
		case typeNormal:
			m.insert(id)
			if oneRune(p.text) > 0 {
				r, _ := utf8.DecodeRuneInString(p.text)
				m.runeID[r] = id
			}
		case typeUnknown:
			if m.unk != none {
				return nil, fmt.Errorf("pieces %d and %d, %q, are both of type unknown, expected one", m.unk, i, p.text)
			}
			m.unk = id
			t.added = append(t.added, addedToken{id: id, content: p.text, special: true})
		case typeControl:
			t.added = append(t.added, addedToken{id: id, content: p.text, special: true})
		case typeUser:
			users = append(users, addedToken{id: id, content: p.text})
		case typeByte:
			b, ok := parseByte(p.text)
			if !ok {
				return nil, fmt.Errorf("piece %d %q is of type byte, expected a name like <0x0A>", i, p.text)
			}
			m.byteID[b] = id
		default:
			return nil, unsupported("piece %d %q is of type %d, which", i, p.text, p.kind)
		}
	}
	if m.unk == none {
		return nil, errors.New("no piece of type unknown")
	}
	if b := slices.Index(m.byteID[:], none); m.fallback && b >= 0 {
		return nil, fmt.Errorf("byte_fallback without a piece for byte 0x%02X", b)
	}
	return users, nil
}

// spmUsers returns a finder of the user-defined pieces. Those that the config makes
// special tokens are matched like these, and not where they are hidden.
func (t *Tokenizer) spmUsers(users []addedToken) *tokenFinder {
	special := make(map[int32]bool)
	for _, a := range t.added {
		special[a.id] = a.special
	}
	users = slices.DeleteFunc(users, func(u addedToken) bool { return special[u.id] })
	forms := make([]string, len(users))
	for i, u := range users {
		forms[i] = u.content
	}
	return newTokenFinder(users, forms)
}

// nameSpecial sets the special tokens that cfg does not name to the control pieces that
// the trainer was told to make.
func (sp *spmModel) nameSpecial(cfg *config) {
	for _, f := range []struct {
		into *tokenName
		name string
	}{{&cfg.BOS, sp.trainer.bos}, {&cfg.EOS, sp.trainer.eos}, {&cfg.Pad, sp.trainer.pad}} {
		isControl := func(p spmPiece) bool { return p.kind == typeControl && p.text == f.name }
		if *f.into == "" && slices.ContainsFunc(sp.pieces, isControl) {
			*f.into = tokenName(f.name)
		}
	}
}

// spmDecoder makes the decode table.
func (t *Tokenizer) spmDecoder(sp *spmModel) {
	t.dec = newDecodeTable(t.size)
	d := &t.dec
	switch {
	case sp.rules.trimSpaces:
		d.firstBlank = dropAll
	case sp.rules.dummyPrefix:
		d.firstBlank = dropOne
	}
	for i, p := range sp.pieces {
		d.kind[i] = decodeText
		switch p.kind {
		case typeControl, typeUnused:
			d.kind[i] = decodeControl
		case typeUnknown:
			d.kind[i], d.text[i] = decodePlain, sp.trainer.unkSurface
		case typeByte:
			b, _ := parseByte(p.text)
			d.kind[i], d.text[i] = decodeByte, string([]byte{b})
		default:
			d.text[i] = strings.ReplaceAll(p.text, spaceMark, " ")
		}
	}
	for _, a := range t.added {
		if int(a.id) >= len(sp.pieces) {
			d.kind[a.id], d.text[a.id] = decodePlain, a.content
		}
		d.skip[a.id] = a.special && d.kind[a.id] != decodeControl
	}
}

// parseByte reads <0x0A>.
func parseByte(name string) (byte, bool) {
	if len(name) != 6 || name[:3] != "<0x" || name[5] != '>' {
		return 0, false
	}
	var b byte
	for _, c := range []byte(name[3:5]) {
		switch {
		case c >= '0' && c <= '9':
			b = b<<4 | (c - '0')
		case c >= 'A' && c <= 'F':
			b = b<<4 | (c - 'A' + 10)
		case c >= 'a' && c <= 'f':
			b = b<<4 | (c - 'a' + 10)
		default:
			return 0, false
		}
	}
	return b, true
}

// surround sets what AddSpecial adds according to add_bos_token, on by
// default, and add_eos_token, off by default.
func (t *Tokenizer) surround(cfg *config) {
	if t.bos != none && isTrue(cfg.AddBOS) {
		t.prefix = []int32{t.bos}
	}
	if t.eos != none && cfg.AddEOS != nil && *cfg.AddEOS {
		t.suffix = []int32{t.eos}
	}
}

// rankByScore builds the merges: two neighbours may merge if together they form a
// normal piece, higher scores first and equal scores from the left.
func (m *bpe) rankByScore(pieces []spmPiece) error {
	var scores []float32
	for _, p := range pieces {
		if p.kind == typeNormal {
			scores = append(scores, p.score)
		}
	}
	slices.SortFunc(scores, func(a, b float32) int { return cmp.Compare(b, a) })
	scores = slices.Compact(scores)

	// half returns the symbol for part of a piece: a piece, or a character that
	// is not one but takes part in merges.
	next := int32(len(m.pieces))
	half := func(text string) int32 {
		if id := m.lookup(text); id != none {
			return id
		}
		if oneRune(text) == 0 {
			return none
		}
		r, _ := utf8.DecodeRuneInString(text)
		id, ok := m.runeID[r]
		if !ok {
			id = next
			next++
			m.runeID[r] = id
		}
		return id
	}
	merges := make([]merge, 0, 2*len(pieces))
	for id, p := range pieces {
		if p.kind != typeNormal {
			continue
		}
		rank, _ := slices.BinarySearchFunc(scores, p.score, func(a, b float32) int { return cmp.Compare(b, a) })
		for i := runeLen(p.text, 0); i < len(p.text); i += runeLen(p.text, i) {
			left, right := half(p.text[:i]), half(p.text[i:])
			if left != none && right != none {
				merges = append(merges, merge{left, right, uint32(rank), int32(id)})
			}
			if len(merges) > maxMerges {
				return fmt.Errorf("more than %d merges", maxMerges)
			}
		}
	}
	m.merges = newPairTable(merges)
	return nil
}

// spmNormal is the normalizer of SentencePiece.
type spmNormal struct {
	chars       *charsMap    // nil: characters stay
	users       *tokenFinder // user-defined pieces stay
	dummyPrefix bool         // a blank is put before the text
	trimSpaces  bool         // no blanks at the ends and single ones between words
	escape      bool         // blanks become spaceMark
}

func (p spmNormal) normalize(s *scratch, first bool) {
	text := s.cur
	at := 0
	if p.trimSpaces {
		for at < len(text) {
			to, n := p.prefix(text, at)
			if to != " " {
				break
			}
			at += n
		}
	}
	s.rewrite()
	if at == len(text) {
		s.finish()
		return
	}
	blank := " "
	if p.escape {
		blank = spaceMark
	}
	if p.dummyPrefix && first {
		s.put(blank, at, at)
	}
	wasBlank := p.trimSpaces
	for at < len(text) && !s.spent(1) {
		to, n := p.prefix(text, at)
		for wasBlank && strings.HasPrefix(to, " ") {
			to = to[1:]
		}
		if to != "" {
			wasBlank = p.trimSpaces && strings.HasSuffix(to, " ")
			for i := 0; i < len(to); {
				k := strings.IndexByte(to[i:], ' ')
				if k < 0 {
					k = len(to) - i
				}
				s.put(to[i:i+k], at, at+n)
				if i += k; i < len(to) {
					s.put(blank, at, at+n)
					i++
				}
			}
		}
		at += n
	}
	if p.trimSpaces {
		for bytes.HasSuffix(s.out, []byte(blank)) {
			s.out = s.out[:len(s.out)-len(blank)]
			if s.want {
				s.outSrc = s.outSrc[:len(s.out)]
			}
		}
	}
	s.finish()
}

// prefix returns what the first n bytes at text[at:] become.
func (p spmNormal) prefix(text string, at int) (to string, n int) {
	if p.users != nil && p.users.first[text[at]] {
		if tok, end := p.users.at(text, at, nil); tok != nil {
			return text[at:end], end - at
		}
	}
	if p.chars != nil {
		if to, n := p.chars.longest(text[at:]); n > 0 {
			return to, n
		}
	}
	r, n := utf8.DecodeRuneInString(text[at:])
	if r == utf8.RuneError && n == 1 {
		return "\uFFFD", 1
	}
	return text[at : at+n], n
}

// charsMap is a compiled table of replacements: a double array (of the
// Darts-clone library) over the texts to replace, and the replacements, each
// terminated by a zero byte.
type charsMap struct {
	units []uint32
	texts string
}

// newCharsMap reads a precompiled_charsmap: the length of the double array in
// bytes, the double array, the replacements. An empty one is nil.
func newCharsMap(b []byte) (*charsMap, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if len(b) < 4 {
		return nil, fmt.Errorf("%d bytes, expected at least 4", len(b))
	}
	size := binary.LittleEndian.Uint32(b)
	if uint64(size) > uint64(len(b)-4) || size%4 != 0 || size == 0 {
		return nil, fmt.Errorf("table of %d bytes in %d bytes", size, len(b)-4)
	}
	for text := range bytes.SplitSeq(b[4+size:], []byte{0}) {
		if len(text) > maxReplacement {
			return nil, fmt.Errorf("replacement %.40q of %d bytes, expected at most %d", text, len(text), maxReplacement)
		}
	}
	c := &charsMap{units: make([]uint32, size/4), texts: string(b[4+size:])}
	for i := range c.units {
		c.units[i] = binary.LittleEndian.Uint32(b[4+4*i:])
	}
	return c, nil
}

// longest returns the replacement of the longest text in the table that s starts
// with, and that text's length, or 0 if there is none.
func (c *charsMap) longest(s string) (to string, n int) {
	// A unit holds a label in its low byte, whether it has a value in bit 8, and
	// the offset to its children in the upper bits, scaled by bit 9.
	offset := func(u uint32) uint32 { return u >> 10 << (u & (1 << 9) >> 6) }
	at := offset(c.units[0])
	value := uint32(math.MaxUint32)
	for i := range min(len(s), maxAddedLen) { // a table with a cycle has no end
		at ^= uint32(s[i])
		if at >= uint32(len(c.units)) {
			break
		}
		u := c.units[at]
		if u&(1<<31|0xff) != uint32(s[i]) {
			break
		}
		at ^= offset(u)
		if u>>8&1 != 0 && at < uint32(len(c.units)) {
			value, n = c.units[at]&(1<<31-1), i+1
		}
	}
	if n == 0 || value > uint32(len(c.texts)) {
		return "", 0
	}
	to, _, _ = strings.Cut(c.texts[value:], "\x00")
	return to, n
}
