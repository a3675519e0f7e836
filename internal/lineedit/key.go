package lineedit

import (
	"context"
	"io"
	"strings"
	"unicode/utf8"
)

// key is one key press: a character, or one of the names below.
type key struct {
	r    rune // if name is keyRune
	name keyName
	text string // if name is keyPaste
}

type keyName int

const (
	keyRune keyName = iota
	keyNone
	keyEnter
	keyLeft
	keyRight
	keyWordLeft
	keyWordRight
	keyHome
	keyEnd
	keyUp
	keyDown
	keyBackspace
	keyDelete
	keyDeleteOrEOF
	keyWordBack
	keyWordForward
	keyKillStart
	keyKillEnd
	keyClear
	keyInterrupt
	keyPaste
	keyTab
	keySearch
	keyCancel
)

var controls = map[byte]keyName{
	1: keyHome, 2: keyLeft, 3: keyInterrupt, 4: keyDeleteOrEOF, 5: keyEnd, 6: keyRight, 7: keyCancel, 8: keyBackspace, '\t': keyTab,
	'\n': keyEnter, '\r': keyEnter, 11: keyKillEnd, 12: keyClear, 14: keyDown, 16: keyUp, 18: keySearch, 21: keyKillStart,
	23: keyWordBack, 127: keyBackspace,
}

// sequences are the control sequences after ESC, where "[" also represents "O".
var sequences = map[string]keyName{
	"[A": keyUp, "[B": keyDown, "[C": keyRight, "[D": keyLeft, "[H": keyHome, "[F": keyEnd,
	"[1~": keyHome, "[7~": keyHome, "[4~": keyEnd, "[8~": keyEnd, "[3~": keyDelete,
	"[1;5C": keyWordRight, "[1;5D": keyWordLeft, "[1;3C": keyWordRight, "[1;3D": keyWordLeft,
	"[5C": keyWordRight, "[5D": keyWordLeft,
	"b": keyWordLeft, "f": keyWordRight, "d": keyWordForward, "\x7f": keyWordBack, "\b": keyWordBack,
}

const (
	pasteStart = "[200~"
	pasteEnd   = "\x1b[201~"
	maxPaste   = 16 << 20
)

// key reads one key.
func (t *Terminal) key(ctx context.Context) (key, error) {
	b, _, err := t.next(ctx, true)
	switch {
	case err != nil:
		return key{}, err
	case b == 0x1b:
		return t.sequence(ctx)
	case b < ' ' || b == 0x7f:
		if n, ok := controls[b]; ok {
			return key{name: n}, nil
		}
		return key{name: keyNone}, nil
	}
	char := []byte{b}
	for !utf8.FullRune(char) {
		b, ok, err := t.next(ctx, false)
		if err != nil {
			return key{}, err
		}
		if !ok {
			break
		}
		char = append(char, b)
	}
	r, _ := utf8.DecodeRune(char)
	return key{r: r}, nil
}

// sequence reads what follows an ESC.
func (t *Terminal) sequence(ctx context.Context) (key, error) {
	var s []byte
	for {
		b, ok, err := t.next(ctx, false)
		if err != nil {
			return key{}, err
		}
		if !ok {
			return key{name: keyNone}, nil // ESC alone, or a sequence cut short
		}
		s = append(s, b)
		if len(s) == 1 && (b == '[' || b == 'O') {
			s[0] = '['
			continue
		}
		// A control sequence ends with a byte from @ to ~.
		if len(s) == 1 || b >= '@' && b <= '~' || len(s) > 32 {
			break
		}
	}
	if string(s) == pasteStart {
		return t.paste(ctx)
	}
	if n, ok := sequences[string(s)]; ok {
		return key{name: n}, nil
	}
	return key{name: keyNone}, nil
}

// paste reads pasted text up to its closing bracket.
func (t *Terminal) paste(ctx context.Context) (key, error) {
	var s []byte
	for {
		b, _, err := t.next(ctx, true)
		if err == io.EOF {
			break
		}
		if err != nil {
			return key{}, err
		}
		if len(s) < maxPaste {
			s = append(s, b)
		}
		if b == '~' && strings.HasSuffix(string(s[max(0, len(s)-len(pasteEnd)):]), pasteEnd) {
			s = s[:len(s)-len(pasteEnd)]
			break
		}
	}
	text := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(strings.ToValidUTF8(string(s), "\uFFFD"))
	return key{name: keyPaste, text: text}, nil
}
