"""What the page is made of in the browser; ECharts is Apache-2.0 (`echarts.LICENSE`, `echarts.NOTICE`)."""
