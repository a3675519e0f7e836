package lukv

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

const npyMagic = "\x93NUMPY"

// maxNPYValues bounds what ReadNPY allocates: a profile of 1000 layers of 256
// heads fits.
const maxNPYValues = 1 << 25

// WriteNPY writes an array of float64 in the .npy format, version 1.0, little
// endian, C order. The product of shape must be len(data).
func WriteNPY(w io.Writer, shape []int, data []float64) error {
	dims := make([]string, len(shape))
	n := 1
	for i, d := range shape {
		dims[i] = strconv.Itoa(d)
		n *= d
	}
	if n != len(data) {
		return fmt.Errorf("write npy: %d values for shape %v", len(data), shape)
	}
	tuple := strings.Join(dims, ", ")
	if len(dims) == 1 {
		tuple += ","
	}
	header := fmt.Sprintf("{'descr': '<f8', 'fortran_order': False, 'shape': (%s), }", tuple)
	// The data start at a multiple of 64; the header ends with a newline.
	pad := 63 - (len(npyMagic)+4+len(header))%64
	header += strings.Repeat(" ", pad) + "\n"
	if len(header) > math.MaxUint16 {
		return fmt.Errorf("write npy: shape of %d dimensions", len(shape))
	}
	buf := make([]byte, 0, len(npyMagic)+4+len(header)+8*len(data))
	buf = append(buf, npyMagic...)
	buf = append(buf, 1, 0)
	buf = binary.LittleEndian.AppendUint16(buf, uint16(len(header)))
	buf = append(buf, header...)
	for _, v := range data {
		buf = binary.LittleEndian.AppendUint64(buf, math.Float64bits(v))
	}
	if _, err := w.Write(buf); err != nil {
		return fmt.Errorf("write npy: %w", err)
	}
	return nil
}

// ReadNPY reads an array of float64 or float32 (widened) in C order, either
// byte order, .npy versions 1 to 3, and expects the input to end there.
func ReadNPY(r io.Reader) (shape []int, data []float64, err error) {
	fail := func(format string, args ...any) ([]int, []float64, error) {
		return nil, nil, fmt.Errorf("read npy: "+format, args...)
	}
	var start [8]byte
	if _, err := io.ReadFull(r, start[:]); err != nil {
		return fail("magic: %w", err)
	}
	if string(start[:6]) != npyMagic {
		return fail("found %q, expected the magic %q", start[:6], npyMagic)
	}
	var n uint32
	switch start[6] {
	case 1:
		var b [2]byte
		_, err = io.ReadFull(r, b[:])
		n = uint32(binary.LittleEndian.Uint16(b[:]))
	case 2, 3:
		var b [4]byte
		_, err = io.ReadFull(r, b[:])
		n = binary.LittleEndian.Uint32(b[:])
	default:
		return fail("version %d.%d, expected 1 to 3", start[6], start[7])
	}
	if err != nil {
		return fail("header length: %w", err)
	}
	if n > 1<<16 {
		return fail("header of %d bytes, expected at most %d", n, 1<<16)
	}
	header := make([]byte, n)
	if _, err := io.ReadFull(r, header); err != nil {
		return fail("header: %w", err)
	}
	h, err := parseNPYHeader(string(header))
	if err != nil {
		return fail("header: %w", err)
	}
	if h.fortran {
		return fail("array in Fortran order, expected C order")
	}
	size := 0
	var order binary.ByteOrder = binary.LittleEndian
	switch h.descr {
	case "<f8":
		size = 8
	case "<f4":
		size = 4
	case ">f8":
		size, order = 8, binary.BigEndian
	case ">f4":
		size, order = 4, binary.BigEndian
	default:
		return fail("type %q, expected f8 or f4", h.descr)
	}
	count := 1
	for _, d := range h.shape {
		if d > 0 && count > maxNPYValues/d {
			return fail("shape %v, expected at most %d values", h.shape, maxNPYValues)
		}
		count *= d
	}
	// Truncated input must not cost the memory that its header asks for,
	// hence no allocation up front.
	var body bytes.Buffer
	got, err := io.Copy(&body, io.LimitReader(r, int64(count*size)+1))
	if err != nil {
		return fail("data: %w", err)
	}
	if got != int64(count*size) {
		more := ""
		if got > int64(count*size) {
			more = " or more"
		}
		return fail("%d bytes of data%s for shape %v of %s, expected %d", got, more, h.shape, h.descr, count*size)
	}
	raw := body.Bytes()
	data = make([]float64, count)
	for i := range data {
		if size == 8 {
			data[i] = math.Float64frombits(order.Uint64(raw[8*i:]))
		} else {
			data[i] = float64(math.Float32frombits(order.Uint32(raw[4*i:])))
		}
	}
	return h.shape, data, nil
}

type npyHeader struct {
	descr   string
	fortran bool
	shape   []int
}

// parseNPYHeader reads the Python dictionary literal of an .npy file: exactly
// the keys descr, fortran_order and shape, in any order.
func parseNPYHeader(text string) (npyHeader, error) {
	var h npyHeader
	p := npyParser{strings.TrimSpace(text)}
	seen := map[string]bool{}
	if err := p.expect("{"); err != nil {
		return h, err
	}
	for !p.take("}") {
		key, err := p.quoted()
		if err != nil {
			return h, err
		}
		if seen[key] {
			return h, fmt.Errorf("key %q twice", key)
		}
		seen[key] = true
		if err := p.expect(":"); err != nil {
			return h, err
		}
		switch key {
		case "descr":
			h.descr, err = p.quoted()
		case "fortran_order":
			h.fortran = p.take("True")
			if !h.fortran {
				err = p.expect("False")
			}
		case "shape":
			h.shape, err = p.tuple()
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		if err != nil {
			return h, err
		}
		if !p.take(",") {
			if err := p.expect("}"); err != nil {
				return h, err
			}
			break
		}
	}
	if p.rest != "" {
		return h, fmt.Errorf("found %.20q after the dictionary", p.rest)
	}
	if len(seen) != 3 {
		return h, fmt.Errorf("found %d keys, expected descr, fortran_order and shape", len(seen))
	}
	return h, nil
}

type npyParser struct{ rest string }

// take skips token, if it comes next, and the blanks after it.
func (p *npyParser) take(token string) bool {
	rest, ok := strings.CutPrefix(p.rest, token)
	if ok {
		p.rest = strings.TrimLeft(rest, " \t\n")
	}
	return ok
}

func (p *npyParser) expect(token string) error {
	if !p.take(token) {
		return fmt.Errorf("found %.20q, expected %q", p.rest, token)
	}
	return nil
}

func (p *npyParser) quoted() (string, error) {
	if p.rest == "" || p.rest[0] != '\'' && p.rest[0] != '"' {
		return "", fmt.Errorf("found %.20q, expected a string", p.rest)
	}
	text, rest, ok := strings.Cut(p.rest[1:], p.rest[:1])
	if !ok {
		return "", fmt.Errorf("string without end")
	}
	p.rest = strings.TrimLeft(rest, " \t\n")
	return text, nil
}

func (p *npyParser) tuple() ([]int, error) {
	if err := p.expect("("); err != nil {
		return nil, err
	}
	shape := []int{}
	for !p.take(")") {
		i := 0
		for i < len(p.rest) && p.rest[i] >= '0' && p.rest[i] <= '9' {
			i++
		}
		d, err := strconv.ParseInt(p.rest[:i], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("dimension: found %.20q, expected an integer of at most 31 bits", p.rest)
		}
		shape = append(shape, int(d))
		p.rest = strings.TrimLeft(p.rest[i:], " \t\n")
		if !p.take(",") {
			if err := p.expect(")"); err != nil {
				return nil, err
			}
			break
		}
	}
	return shape, nil
}
