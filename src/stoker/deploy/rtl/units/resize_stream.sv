// The same numbers in words of another number of lanes, one of which divides the other. The first number is lowest.
module resize_stream #(
    parameter int W = 8,
    parameter int IN_LANES = 1,
    parameter int OUT_LANES = 2
) (
    input  logic                   clk,
    input  logic                   rst,
    input  logic [IN_LANES*W-1:0]  in_data,
    input  logic                   in_valid,
    output logic                   in_ready,
    output logic [OUT_LANES*W-1:0] out_data,
    output logic                   out_valid,
    input  logic                   out_ready
);
    generate
        if (IN_LANES < OUT_LANES) begin : pack
            localparam int PARTS = OUT_LANES / IN_LANES;
            localparam int CW = $clog2(PARTS);
            logic [CW-1:0] part;
            // A whole word leaves in the cycle in which its successor's first part comes.
            assign in_ready = !out_valid || out_ready;
            always_ff @(posedge clk) begin
                if (in_valid && in_ready) out_data <= {in_data, out_data[OUT_LANES*W-1:IN_LANES*W]};
            end
            always_ff @(posedge clk) begin
                if (rst) begin
                    part <= '0;
                    out_valid <= 1'b0;
                end else if (in_valid && in_ready) begin
                    part <= (part == CW'(PARTS - 1)) ? '0 : part + 1'b1;
                    out_valid <= part == CW'(PARTS - 1);
                end else if (out_ready) begin
                    out_valid <= 1'b0;
                end
            end
        end else begin : unpack
            localparam int PARTS = IN_LANES / OUT_LANES;
            localparam int CW = $clog2(PARTS + 1);
            logic [CW-1:0] left;
            logic [IN_LANES*W-1:0] word;
            assign out_valid = left != '0;
            assign out_data = word[OUT_LANES*W-1:0];
            assign in_ready = (left == '0) || (left == CW'(1) && out_ready);
            always_ff @(posedge clk) begin
                if (in_valid && in_ready) word <= in_data;
                else if (out_valid && out_ready) word <= word >> (OUT_LANES * W);
            end
            always_ff @(posedge clk) begin
                if (rst) left <= '0;
                else if (in_valid && in_ready) left <= CW'(PARTS);
                else if (out_valid && out_ready) left <= left - 1'b1;
            end
        end
    endgenerate
endmodule
