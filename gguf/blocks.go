package gguf

import (
	"fmt"

	"github.com/lukv/lukv/tensor"
)

// Type is how the elements of a tensor are stored.
type Type uint32

const (
	F32    Type = 0
	F16    Type = 1
	Q4_0   Type = 2
	Q4_1   Type = 3
	Q5_0   Type = 6
	Q5_1   Type = 7
	Q8_0   Type = 8
	Q2_K   Type = 10
	Q3_K   Type = 11
	Q4_K   Type = 12
	Q5_K   Type = 13
	Q6_K   Type = 14
	IQ4_NL Type = 20
	IQ4_XS Type = 23
	BF16   Type = 30
	MXFP4  Type = 39
)

// block says how a type stores elements along a row: how many in how many bytes.
type block struct {
	name            string
	elements, bytes int
	stored          tensor.Type // 0: rows of the type are not read here
}

// blocks lists all types that files are known to hold.
var blocks = map[Type]block{
	9: {"Q8_1", 32, 36, 0}, 15: {"Q8_K", 256, 292, 0},
	16: {"IQ2_XXS", 256, 66, 0}, 17: {"IQ2_XS", 256, 74, 0}, 18: {"IQ3_XXS", 256, 98, 0}, 19: {"IQ1_S", 256, 50, 0},
	21: {"IQ3_S", 256, 110, 0}, 22: {"IQ2_S", 256, 82, 0},
	24: {"I8", 1, 1, 0}, 25: {"I16", 1, 2, 0}, 26: {"I32", 1, 4, 0}, 27: {"I64", 1, 8, 0}, 28: {"F64", 1, 8, 0},
	29: {"IQ1_M", 256, 56, 0}, 34: {"TQ1_0", 256, 54, 0}, 35: {"TQ2_0", 256, 66, 0},
	40: {"NVFP4", 64, 36, 0}, 41: {"Q1_0", 128, 18, 0}, 42: {"Q2_0", 64, 18, 0},
}

func init() {
	for t, stored := range map[Type]tensor.Type{
		F32: tensor.F32, F16: tensor.F16, BF16: tensor.BF16,
		Q4_0: tensor.Q4_0, Q4_1: tensor.Q4_1, Q5_0: tensor.Q5_0, Q5_1: tensor.Q5_1, Q8_0: tensor.Q8_0,
		Q2_K: tensor.Q2_K, Q3_K: tensor.Q3_K, Q4_K: tensor.Q4_K, Q5_K: tensor.Q5_K, Q6_K: tensor.Q6_K,
		IQ4_NL: tensor.IQ4_NL, IQ4_XS: tensor.IQ4_XS, MXFP4: tensor.MXFP4,
	} {
		n := stored.Block()
		blocks[t] = block{stored.String(), n, stored.Bytes(n), stored}
	}
}

// removed lists the types that were taken out of the format; old files hold them.
var removed = map[Type]string{
	4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}

// firstForkType is the first number that ik_llama.cpp gives to its own types.
const firstForkType Type = 97

// unknown returns the error for a type that is not in blocks.
func (t Type) unknown() error {
	if name, ok := removed[t]; ok {
		return fmt.Errorf("type %d (%s) was removed from the format: convert the model again", uint32(t), name)
	}
	if t >= firstForkType {
		return fmt.Errorf("type %d is not known: numbers from %d on are those of the fork ik_llama.cpp, whose own types are not supported", uint32(t), uint32(firstForkType))
	}
	return fmt.Errorf("type %d is not known", uint32(t))
}

func (t Type) String() string {
	if b, ok := blocks[t]; ok {
		return b.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// Stored returns the tensor type of the same layout, by which rows are read in place, 0 if
// there is none.
func (t Type) Stored() tensor.Type { return blocks[t].stored }

// TypeOf returns the type of which t is the [Type.Stored]; ok is false if there is none.
func TypeOf(t tensor.Type) (typ Type, ok bool) {
	for typ, b := range blocks {
		if b.stored == t && t != 0 {
			return typ, true
		}
	}
	return 0, false
}

// Readable reports whether rows of the type can be read.
func (t Type) Readable() bool { return t.Stored() != 0 }

// Rows dequantises n rows into dst, [n][rowLength], starting with row from,
// counted over all outer dimensions. It panics if the tensor does not have that
// many. A type that is not Readable is an error.
func (t *Tensor) Rows(dst []float32, from, n int) error {
	stored := t.Type.Stored()
	if stored == 0 {
		return fmt.Errorf("tensor %q: the type %s is not supported", t.Name, t.Type)
	}
	width := t.rowLength()
	stored.Widen(dst[:n*width], t.Data[stored.Bytes(from*width):stored.Bytes((from+n)*width)])
	return nil
}
