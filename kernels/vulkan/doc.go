package vulkan
