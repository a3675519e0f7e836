//go:build !novulkan

package main

import _ "github.com/lukv/lukv/kernels/vulkan" // the driver of --device vulkan
