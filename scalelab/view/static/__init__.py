"""Files of the page in the browser; ECharts is Apache-2.0 (`echarts.LICENSE`, `echarts.NOTICE`)."""
