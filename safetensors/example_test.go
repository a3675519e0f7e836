package safetensors_test

import (
	"bytes"
	"fmt"

	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

func Example() {
	var buf bytes.Buffer
	err := safetensors.Write(&buf, []safetensors.Named{
		{Name: "bias", Tensor: tensor.FromF32s(tensor.BF16, []float32{0.5, -1}, 2)},
		{Name: "weight", Tensor: tensor.FromF32s(tensor.F32, []float32{1, 2, 3, 4, 5, 6}, 2, 3)},
	}, map[string]string{"format": "pt"})
	if err != nil {
		fmt.Println(err)
		return
	}

	f, err := safetensors.Parse("buffer", buf.Bytes()) // Open for a file
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	for name, t := range f.All() {
		fmt.Println(name, t, t.Float32s(nil))
	}
	w, _ := f.Tensor("weight")
	fmt.Println(w.Row(1).F32s(), f.Metadata()["format"])
	// Output:
	// weight F32[2, 3] [1 2 3 4 5 6]
	// bias BF16[2] [0.5 -1]
	// [4 5 6] pt
}
