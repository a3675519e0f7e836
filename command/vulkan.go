//go:build !novulkan

package command

import _ "github.com/lukv/lukv/kernels/vulkan" // the driver of --device vulkan
