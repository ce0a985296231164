// The FIFO behind a pipeline whose work is begun only where `credits` has room: it never has to refuse a word.
module output_fifo #(
    parameter int W = 8,
    parameter int DEPTH = 16
) (
    input  logic         clk,
    input  logic         rst,
    input  logic [W-1:0] in_data,
    input  logic         in_valid,
    output logic [W-1:0] out_data,
    output logic         out_valid,
    input  logic         out_ready
);
    logic ready;
    fifo #(.W(W), .DEPTH(DEPTH)) words (
        .clk, .rst, .in_data, .in_valid, .in_ready(ready), .out_data, .out_valid, .out_ready
    );
`ifdef SIMULATION
    always_ff @(posedge clk) if (!rst) assert (ready || !in_valid) else $error("a result without a place");
`else
    logic unused;
    assign unused = ready;
`endif
endmodule
